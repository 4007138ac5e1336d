/* The kernels of a GPU on the CPU (gpu/lanes.h), for tests/gpu_card.py. */
#define DPK_GPU
#include "gpu/sums.h"

void set_launch(int float32, int mapped, int weighted, int loss, int steps, int models);

void set_launch(int float32, int mapped, int weighted, int loss, int steps, int models) {
    launch.float32 = float32;
    launch.mapped = mapped;
    launch.weighted = weighted;
    launch.loss = loss;
    launch.steps = steps;
    launch.models = models;
}
