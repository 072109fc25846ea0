#pragma once
#include <cstdint>

// y[i] = a * x[i] for i < n, on a stream; returns what the launch said (0 is good).
int launch_scale(float* y, const float* x, float a, int64_t n, void* stream);
