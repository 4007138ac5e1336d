/* Newton directions with eigenvalues truncated from below: p_j = (V max(lam, floor) V^T)^-1 g_j,
 * H_j = V lam V^T. */
#pragma once

#include "core/dpk.h"

/* LAPACK's routines of these names, by addresses that the caller takes from scipy. */
typedef struct {
    void (*dpotrf)(char *uplo, int *n, double *a, int *lda, int *info);
    void (*dpotrs)(char *uplo, int *n, int *nrhs, double *a, int *lda, double *b, int *ldb,
                   int *info);
    void (*dsytrd)(char *uplo, int *n, double *a, int *lda, double *d, double *e, double *tau,
                   double *work, int *lwork, int *info);
    void (*dstemr)(char *jobz, char *range, int *n, double *d, double *e, double *vl, double *vu,
                   int *il, int *iu, int *m, double *w, double *z, int *ldz, int *nzc, int *isuppz,
                   int *tryrac, double *work, int *lwork, int *iwork, int *liwork, int *info);
    void (*dstedc)(char *compz, int *n, double *d, double *e, double *z, int *ldz, double *work,
                   int *lwork, int *iwork, int *liwork, int *info);
    void (*dormtr)(char *side, char *uplo, char *trans, int *m, int *n, double *a, int *lda,
                   double *tau, double *c, int *ldc, double *work, int *lwork, int *info);
    void (*dgemv)(char *trans, int *m, int *n, double *alpha, double *a, int *lda, double *x,
                  int *incx, double *beta, double *y, int *incy);
} dpk_lapack;

/* Largest d: LAPACK counts its work space, d^2 doubles, in int. */
enum { DPK_NEWTON_MAX = 40000 };

/* Doubles, and integers, of work space that a thread needs. */
static inline intptr_t dpk_newton_work(intptr_t d) { return 3 * d * d + 72 * d + 64; }
static inline intptr_t dpk_newton_iwork(intptr_t d) { return 12 * d + 3; }

/* H: (m, d, d), of which the lower triangle is read; g, out: (m, d); floor: positive and finite;
 * work: (n_threads, dpk_newton_work(d)); iwork: (n_threads, dpk_newton_iwork(d)). */
dpk_status dpk_newton_direction(intptr_t m, intptr_t d, const double *H, const double *g,
                                double floor, const dpk_lapack *lapack, int n_threads, double *work,
                                int *iwork, double *out);
