/* Made by gaussian_table.py: rational fits of Phi^-1, lowest degree first, and bounds
 * of what is computed from them. */
/* clang-format off */
#pragma once

/* |x| = |u| A(v) / B(v) with v = 1/4 - u^2. */
static const double COARSE_A[] = {
    0x1.d9dc283ad3c1dp+2,
    0x1.c7e25eb5281d9p+13,
    0x1.5aab4c5ba7158p+22,
    0x1.52e07f64965a1p+29,
    0x1.fb37b08902a9ep+34,
    0x1.34d97efe0584fp+39,
    0x1.2e7d135858442p+42,
    0x1.b2eeff3a6fe51p+43,
    0x1.6861ba37b17cfp+43,
    0x1.3877a4085efcdp+40,
};
static const double COARSE_B[] = {
    0x1.0000000000000p+0,
    0x1.280da83b32c3dp+11,
    0x1.034d5021e5a46p+20,
    0x1.22738c303d357p+27,
    0x1.f6ff638a71a96p+32,
    0x1.6a4c96bbdf766p+37,
    0x1.b4667bf8f67abp+40,
    0x1.9dc4ca03ea644p+42,
    0x1.05e9542d46539p+43,
    0x1.1c90d5bcc8a94p+41,
};
#define COARSE_ERROR (3740 * 0x1p-53)

/* |x| = s C(s) / D(s) with s = -ln(2 p). */
static const double FINE_C[] = {
    0x1.40d931ff62705p+0,
    0x1.851edae7ade81p+2,
    0x1.7edd4928b2224p+3,
    0x1.8c40550ec3b24p+3,
    0x1.d59585f28972bp+2,
    0x1.46eea7317baa7p+1,
    0x1.0a1ab0ec57e73p-1,
    0x1.ecba3e5518c8cp-5,
    0x1.ed6bdbfa59f82p-9,
    0x1.ec279a321badep-14,
    0x1.a869ba0164874p-20,
    0x1.dc5a9d60c668bp-28,
    0x1.24481cb8b89f6p-38,
};
static const double FINE_D[] = {
    0x1.0000000000000p+0,
    0x1.567927a81e2fap+2,
    0x1.79639510954f5p+3,
    0x1.bd634e0f31e26p+3,
    0x1.335e0d7ecb8d7p+3,
    0x1.fee1894d3e359p+1,
    0x1.febd71a579643p-1,
    0x1.2c5864e9ec6b3p-3,
    0x1.8e65d996fd914p-7,
    0x1.16944d69c5e4ep-11,
    0x1.704cea92fbb71p-17,
    0x1.7a1a7c6e3e4e6p-24,
    0x1.7e5f5a2a8dd20p-33,
};
/* The bound is the first plus the second times |x|. */
#define FINE_ERROR (11 * 0x1p-53)
#define FINE_ERROR_PER_X (34 * 0x1p-53)
