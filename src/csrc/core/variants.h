/* One function for every value of a constant: the kind of a row, the size of a tile.
 *
 * DEFINE_VARIANTS(count, name, (parameters), arguments ...) defines static functions name_0 ..
 * name_(count - 1) with these parameters, number i of which calls the inline function name(i,
 * arguments ...), and the table name_variants of them. Each is a function of its own: one for
 * all would spill registers, and its inner loops read their pointers from the stack (a third
 * slower).
 * count: 2, 3, 4 or 8, a literal or a macro. */
#pragma once

#define DPK_VARIANT(i, name, parameters, ...)                                                      \
    static __attribute__((noinline)) void name##_##i parameters { name(i, __VA_ARGS__); }
#define DPK_VARIANTS_2(...) DPK_VARIANT(0, __VA_ARGS__) DPK_VARIANT(1, __VA_ARGS__)
#define DPK_VARIANTS_3(...) DPK_VARIANTS_2(__VA_ARGS__) DPK_VARIANT(2, __VA_ARGS__)
#define DPK_VARIANTS_4(...) DPK_VARIANTS_3(__VA_ARGS__) DPK_VARIANT(3, __VA_ARGS__)
#define DPK_VARIANTS_8(...)                                                                        \
    DPK_VARIANTS_4(__VA_ARGS__)                                                                    \
    DPK_VARIANT(4, __VA_ARGS__)                                                                    \
    DPK_VARIANT(5, __VA_ARGS__) DPK_VARIANT(6, __VA_ARGS__) DPK_VARIANT(7, __VA_ARGS__)
#define DPK_TABLE_2(name) name##_0, name##_1
#define DPK_TABLE_3(name) DPK_TABLE_2(name), name##_2
#define DPK_TABLE_4(name) DPK_TABLE_3(name), name##_3
#define DPK_TABLE_8(name) DPK_TABLE_4(name), name##_4, name##_5, name##_6, name##_7

#define DEFINE_VARIANTS(count, ...) DPK_DEFINE(count, __VA_ARGS__)
#define DPK_DEFINE(count, name, parameters, ...)                                                   \
    DPK_VARIANTS_##count(name, parameters, __VA_ARGS__) static void(*const name##_variants[])      \
        parameters = {DPK_TABLE_##count(name)};

/* `function`, which calls the one of these for the kind of row of `data` (rows/rows.h). Without
 * AVX it serves every kind itself: its branches cost little beside narrow vectors. */
#ifdef __AVX2__
#define DEFINE_FOR_KINDS(function, data, count, name, parameters, ...)                             \
    DEFINE_VARIANTS(count, name, parameters, __VA_ARGS__)                                          \
    function parameters { name##_variants[kind_of(data)](__VA_ARGS__); }
#else
#define DEFINE_FOR_KINDS(function, data, count, name, parameters, ...)                             \
    function parameters { name(kind_of(data), __VA_ARGS__); }
#endif
