/* One function for every kind of row (rows.h), in which the kind is a constant.
 *
 * Every kind of row has its own code, and each its own function: in one for all, registers run out
 * and the inner loops read their pointers from the stack (a third slower). Where there are no
 * vectors to speak of, one code for all must do. */
#ifndef DPK_KINDS_H
#define DPK_KINDS_H

#define OWN_CODE static __attribute__((noinline)) void

/* DEFINE(number, kind) defines functions named NAME_number, with a variable `data` in reach;
 * OF_KIND(NAME, kind) is the one for a kind and has the type dpk_NAME_fn. */
#ifdef __AVX2__
#define FOR_EACH_KIND(DEFINE)                                                                      \
    DEFINE(0, 0)                                                                                   \
    DEFINE(1, 1)                                                                                   \
    DEFINE(2, 2)                                                                                   \
    DEFINE(3, 3)                                                                                   \
    DEFINE(4, 4)                                                                                   \
    DEFINE(5, 5)                                                                                   \
    DEFINE(6, 6)                                                                                   \
    DEFINE(7, 7)
#define OF_KIND(name, kind)                                                                        \
    ((dpk_##name##_fn *const[]){name##_0, name##_1, name##_2, name##_3, name##_4, name##_5,        \
                                name##_6, name##_7}[kind])
#else
#define FOR_EACH_KIND(DEFINE) DEFINE(any, kind_of(data))
#define OF_KIND(name, kind) name##_any
#endif

#endif
