#pragma once
__device__ inline float scaled(float a) { return a * SAXPY_SCALE; }
