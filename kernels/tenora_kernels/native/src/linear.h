// y = x W^T + b (+ residual) for a packed weight.
#pragma once

#include "packed.h"
#include "pool.h"

namespace tenora {

constexpr int64_t ROW_BLOCK_BYTES = 256 * 1024;  // inputs that stay in a core's L2 cache

struct LinearJob {
  const PackedMatrix* w;
  const float* bias;
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  int64_t rows, row_block, panel_group, groups;
  bool adds;

  void operator()(int64_t chunk, int) const {
    int64_t first_row = chunk / groups * row_block, group = chunk % groups;
    int64_t count = std::min(row_block, rows - first_row);
    int64_t last = std::min((group + 1) * panel_group, panels_of(w->n));
    for (int64_t panel = group * panel_group; panel < last; panel++) {
      int64_t column = panel * PANEL;
      Epilogue end{bias ? bias + column : nullptr, 1.0f, adds};
      rows_times_panel(*w, panel, count, end, [&](int64_t i, const float*& xi, float*& yi) {
        xi = x + (first_row + i) * x_stride;
        yi = y + (first_row + i) * y_stride + column;
      });
    }
  }
};

// Panels that one claim takes: about 20 microseconds of work, and never fewer claims than helps.
TN_INLINE int64_t panels_per_claim(int64_t panels, int64_t rows, int64_t k) {
  int64_t macs = std::max<int64_t>(1, std::max<int64_t>(rows, 4) * k * PANEL);
  int64_t wanted = std::max<int64_t>(1, 1'000'000 / macs);
  int64_t fair = std::max<int64_t>(1, panels / (4 * pool().threads()));
  return std::min(wanted, fair);
}

TN_INLINE void linear(const PackedMatrix& w, const float* bias, const float* x, int64_t x_stride,
                      float* y, int64_t y_stride, int64_t rows, bool adds) {
  if (rows == 0 || w.n == 0) return;
  LinearJob job{&w, bias, x, x_stride, y, y_stride, rows, 0, 0, 0, adds};
  int64_t fitting = ROW_BLOCK_BYTES / (4 * std::max<int64_t>(w.k, 1));
  job.row_block = std::max<int64_t>(1, fitting / MAX_TILE_ROWS) * MAX_TILE_ROWS;
  int64_t panels = panels_of(w.n);
  job.panel_group = panels_per_claim(panels, std::min(rows, job.row_block), w.k);
  job.groups = (panels + job.panel_group - 1) / job.panel_group;
  int64_t blocks = (rows + job.row_block - 1) / job.row_block;
  run_chunks(blocks * job.groups, job);
}

}  // namespace tenora
