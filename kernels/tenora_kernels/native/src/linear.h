// y = x W^T + b (+ residual) for a packed weight.
#pragma once

#include <vector>

#include "packed.h"
#include "pointwise.h"
#include "pool.h"

namespace tenora {

constexpr int64_t ROW_BLOCK_BYTES = 256 * 1024;  // inputs that stay in a core's L2 cache

struct LinearJob {
  const PackedMatrix* w;
  int64_t kind;
  const float* bias;
  const char* x;
  int64_t x_row_bytes;
  float* y;
  int64_t y_stride;
  int64_t rows;
  bool adds;
  int64_t row_block = 0, panel_group = 0, groups = 0, chunks = 0;

  void operator()(int64_t chunk, int) const {
    int64_t first_row = chunk / groups * row_block, group = chunk % groups;
    int64_t count = std::min(row_block, rows - first_row);
    int64_t last = std::min((group + 1) * panel_group, panels_of(w->n));
    // the chunk that this thread will take next, when all take turns; behind the last chunk lies the
    // next matrix
    const char* after = (const char*)panel_data(*w, (group + pool().threads()) * panel_group);
    for (int64_t panel = group * panel_group; panel < last;) {
      const char* next_x = x + first_row * x_row_bytes;
      float* next_y = y + first_row * y_stride + panel * PANEL;
      panel += rows_times_panels(
          *w, kind, panel, last, count, after,
          [&](int64_t column) { return Epilogue{bias ? bias + column : nullptr, 1.0f, adds}; },
          [&](int64_t, int64_t, const void*& xi, float*& yi) {
            xi = next_x, next_x += x_row_bytes;
            yi = next_y, next_y += y_stride;
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

// Rows of x as pairs of bfloat16, rounded to nearest; an odd end is paired with zero.
TN_INLINE const uint32_t* rounded_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k) {
  static thread_local std::vector<uint32_t> memory;
  int64_t pairs = (k + 1) / 2;
  if ((int64_t)memory.size() < rows * pairs) memory.resize(rows * pairs);
  uint32_t* out = memory.data();
  for_rows(rows, k, [=](int64_t row) {
    const float* from = x + row * x_stride;
    uint32_t* to = out + row * pairs;
    for (int64_t i = 0; i < k / 2; i++)
      to[i] = float_to_bf16(from[2 * i]) | (uint32_t)float_to_bf16(from[2 * i + 1]) << 16;
    if (k % 2) to[pairs - 1] = float_to_bf16(from[k - 1]);
  });
  return out;
}

// The job of y = x W^T + b, or of y += it. `rounds`: inputs of a BFLOAT16 weight are rounded to
// bfloat16 first.
TN_INLINE LinearJob linear_job(const PackedMatrix& w, const float* bias, const float* x,
                               int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                               bool adds, bool rounds) {
  LinearJob job{&w, w.kind, bias, (const char*)x, 4 * x_stride, y, y_stride, rows, adds};
  if (rows == 0 || w.n == 0) return job;
  if (rounds && w.kind == BFLOAT16) {
    job.kind = ROUNDED;
    job.x = (const char*)rounded_rows(x, x_stride, rows, w.k);
    job.x_row_bytes = 4 * ((w.k + 1) / 2);
  }
  int64_t fitting = ROW_BLOCK_BYTES / (4 * std::max<int64_t>(w.k, 1));
  int64_t tiles = (rows + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS;
  job.row_block = even_part(tiles, std::max<int64_t>(1, fitting / MAX_TILE_ROWS)) * MAX_TILE_ROWS;
  int64_t panels = panels_of(w.n);
  job.panel_group = panels_per_claim(panels, std::min(rows, job.row_block), w.k);
  job.groups = (panels + job.panel_group - 1) / job.panel_group;
  job.chunks = (rows + job.row_block - 1) / job.row_block * job.groups;
  return job;
}

}  // namespace tenora
