// Launches of any size: extents past what one grid may have are split into several launches.
#pragma once

#include <cuda_runtime.h>
#include <stdint.h>

#include <algorithm>

// A grid's y and z end at 65535. In x CUDA ends at 2^31 - 1 blocks, and HIP at 2^32 - 1 threads.
#ifndef GGUF_MAX_GRID_X_THREADS
#define GGUF_MAX_GRID_X_THREADS 0x80000000ll
#endif
#ifndef GGUF_MAX_GRID_YZ
#define GGUF_MAX_GRID_YZ 65535ll
#endif

namespace gguf {

struct Extent {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls launch(origin, grid) for grids that cover `blocks`, until one fails. Nothing is launched for an empty extent.
template <typename Launch>
cudaError_t for_each_grid(Extent blocks, int threads, Launch launch) {
  const int64_t max_x = std::max<int64_t>(1, GGUF_MAX_GRID_X_THREADS / std::max(threads, 1));
  for (int64_t z = 0; z < blocks.z; z += GGUF_MAX_GRID_YZ) {
    for (int64_t y = 0; y < blocks.y; y += GGUF_MAX_GRID_YZ) {
      for (int64_t x = 0; x < blocks.x; x += max_x) {
        const dim3 grid(static_cast<unsigned>(std::min<int64_t>(max_x, blocks.x - x)),
                        static_cast<unsigned>(std::min<int64_t>(GGUF_MAX_GRID_YZ, blocks.y - y)),
                        static_cast<unsigned>(std::min<int64_t>(GGUF_MAX_GRID_YZ, blocks.z - z)));
        launch(Extent{x, y, z}, grid);
        const cudaError_t status = cudaGetLastError();
        if (status != cudaSuccess) return status;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace gguf
