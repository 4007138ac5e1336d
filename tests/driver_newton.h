/* Newton directions, with functions that stand for LAPACK and write to the end of every array that
 * LAPACK may write to. */
#pragma once

#include "driver_inputs.h"

static void fill_to(double *a, int n) {
    for (int i = 0; i < n; i++)
        a[i] = 1.0;
}

static void potrf(char *uplo, int *n, double *a, int *lda, int *info) {
    (void)uplo;
    *info = a[0] < 0.0;
    fill_to(a, *n * *lda);
}

static void potrs(char *uplo, int *n, int *nrhs, double *a, int *lda, double *b, int *ldb,
                  int *info) {
    (void)uplo, (void)a, (void)n, (void)lda;
    fill_to(b, *nrhs * *ldb);
    *info = 0;
}

static void sytrd(char *uplo, int *n, double *a, int *lda, double *d, double *e, double *tau,
                  double *work, int *lwork, int *info) {
    (void)uplo;
    fill_to(a, *n * *lda), fill_to(d, *n), fill_to(e, *n - 1), fill_to(tau, *n - 1);
    fill_to(work, *lwork);
    *info = 0;
}

/* Fails where the matrix has an even size, so that the other one is called too. */
static void stemr(char *jobz, char *range, int *n, double *d, double *e, double *vl, double *vu,
                  int *il, int *iu, int *m, double *w, double *z, int *ldz, int *nzc, int *isuppz,
                  int *tryrac, double *work, int *lwork, int *iwork, int *liwork, int *info) {
    (void)jobz, (void)range, (void)vl, (void)vu, (void)il, (void)iu, (void)nzc, (void)tryrac;
    fill_to(d, *n), fill_to(e, *n), fill_to(w, *n), fill_to(z, *n * *ldz), fill_to(work, *lwork);
    for (int i = 0; i < *liwork; i++)
        iwork[i] = 1;
    for (int i = 0; i < 2 * *n; i++)
        isuppz[i] = 1;
    *m = *n;
    *info = *n % 2 == 0 || *lwork < 18 * *n || *liwork < 10 * *n;
}

static void stedc(char *compz, int *n, double *d, double *e, double *z, int *ldz, double *work,
                  int *lwork, int *iwork, int *liwork, int *info) {
    (void)compz;
    fill_to(d, *n), fill_to(e, *n - 1), fill_to(z, *n * *ldz), fill_to(work, *lwork);
    for (int i = 0; i < *liwork; i++)
        iwork[i] = 1;
    *info = *lwork < 1 + 4 * *n + *n * *n;
}

static void ormtr(char *side, char *uplo, char *trans, int *m, int *n, double *a, int *lda,
                  double *tau, double *c, int *ldc, double *work, int *lwork, int *info) {
    (void)side, (void)uplo, (void)trans, (void)m, (void)a, (void)lda, (void)tau;
    fill_to(c, *n * *ldc), fill_to(work, *lwork);
    *info = 0;
}

static void gemv(char *trans, int *m, int *n, double *alpha, double *a, int *lda, double *x,
                 int *incx, double *beta, double *y, int *incy) {
    (void)trans, (void)m, (void)alpha, (void)a, (void)lda, (void)x, (void)incx, (void)beta;
    fill_to(y, *n * *incy);
}

static int newton(const dpk_kernels *kernels) {
    const dpk_lapack lapack = {potrf, potrs, sytrd, stemr, stedc, ormtr, gemv};
    int bad = 0;
    for (intptr_t d = 1; d < 12; d++) {
        double *work = buffer((size_t)dpk_newton_work(d) * 8), *out = buffer((size_t)(M * d) * 8);
        int *iwork = buffer((size_t)dpk_newton_iwork(d) * sizeof(int));
        for (int sign = -1; sign <= 1; sign += 2) {
            double *H = buffer((size_t)(M * d * d) * 8);
            for (intptr_t k = 0; k < M * d * d; k++)
                H[k] = sign;
            bad |= kernels->newton_direction(M, d, H, W, 0.5, &lapack, 1, work, iwork, out);
            free(H);
        }
        free(work), free(iwork), free(out);
    }
    return bad;
}
