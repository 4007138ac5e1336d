/* Made by gaussian_table.py: rational fits of Phi^-1, lowest degree first, and bounds of
 * what the fast path computes from them. */
/* clang-format off */
#ifndef DPK_GAUSSIAN_TABLE_H
#define DPK_GAUSSIAN_TABLE_H

/* |x| = |u| A(v) / B(v) with v = 1/4 - u^2. */
static const double CENTRAL_A[] = {
    0x1.d747fce13c8a3p+2,
    0x1.b4e9136effd18p+13,
    0x1.5c43aa185fa6ep+22,
    0x1.89679bfd8daf2p+29,
    0x1.7e3e514b95876p+35,
    0x1.5d274a0201536p+40,
    0x1.362fe707e4b8ep+44,
    0x1.0a3bb880a9d10p+47,
    0x1.a404fbc1faa07p+48,
    0x1.0f3048a2cc27dp+49,
    0x1.ba4bb2ba3f2b2p+47,
    0x1.97ae8327bc382p+43,
};
static const double CENTRAL_B[] = {
    0x1.0000000000000p+0,
    0x1.1bea755f0739cp+11,
    0x1.021a84c4407c0p+20,
    0x1.48bbc5a94a548p+27,
    0x1.6863648a1d0aap+33,
    0x1.7686c773cb4f6p+38,
    0x1.8087440f6c4c3p+42,
    0x1.872e5d44daba8p+45,
    0x1.7cf1fa7c00af2p+47,
    0x1.46032a0d5a638p+48,
    0x1.98be70adfb54bp+47,
    0x1.dcabe6707f254p+44,
};

/* |x| = C(s) / D(s) with s = -ln p - LOG_SHIFT. */
#define LOG_SHIFT 0x1.0a2b23f3bab73p+2
static const double TAIL_C[] = {
    0x1.13b22a7d5685dp+1,
    0x1.339a23b165e8cp+1,
    0x1.1d4c0a50d4282p+0,
    0x1.1eb10418338aap-2,
    0x1.5558c0e1f2f7cp-5,
    0x1.efaf01c6a294cp-9,
    0x1.b4e00a2481ee4p-13,
    0x1.c4c56946ff7c4p-18,
    0x1.034708d7bebd9p-23,
    0x1.26a6bbea63c7ap-30,
    0x1.10848669ec4bcp-38,
    0x1.0351e37f2d042p-48,
};
static const double TAIL_D[] = {
    0x1.0000000000000p+0,
    0x1.dc8e099b5731dp-1,
    0x1.6efca2866c219p-2,
    0x1.2fc0b5276645ep-4,
    0x1.2660ce678c5c1p-7,
    0x1.562f985389f72p-11,
    0x1.d7ae37456d8b6p-16,
    0x1.71b70d7b11017p-21,
    0x1.307712c1eb608p-27,
    0x1.c917cd204e5efp-35,
    0x1.d5721b28aaa16p-44,
    0x1.13f0462b547a3p-55,
};

#define CENTRAL_ERROR (69 * 0x1p-53)

#define TAIL_ERROR (195 * 0x1p-53)

#endif
