/* Made by gaussian_table.py: rational fits of Phi^-1, lowest degree first, and bounds of
 * what the fast path computes from them. */
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
    0x1.1abbb803ab699p+1,
    0x1.d8721aa44ca6fp-1,
    0x1.a0e9aee7cff26p-3,
    0x1.a5cb3244a8e26p-6,
    0x1.f249b54f6f9d2p-10,
    0x1.50c8a82ca03efp-14,
    0x1.ec802d8b74cedp-20,
    0x1.5ee2c0fde16b2p-26,
    0x1.90356a49e0710p-34,
    0x1.ce4e23dd916f1p-44,
};
static const double TAIL_D[] = {
    0x1.0000000000000p+0,
    0x1.ae5ed77407585p-1,
    0x1.24ef46d3be9bdp-2,
    0x1.a0cb59c02e804p-5,
    0x1.4e9b93e4d3785p-8,
    0x1.32957306a4e9cp-12,
    0x1.36ef0152da23bp-17,
    0x1.445947983dbc7p-23,
    0x1.2ed96f5622d0cp-30,
    0x1.7c8b2f4298574p-39,
    0x1.0d75e83910772p-50,
};

#define CENTRAL_ERROR (74 * 0x1p-53)

#define TAIL_ERROR (231 * 0x1p-53)

#endif
