// Batched LoRA: y[row, slice s] += scaling_s * (x[row] A_s^T) B_s^T with the row's own adapter.
//
// A step is a list of segments, one per adapter: its rows, wherever they stand. Each adapter's
// factors are read once, at their own rank. No row meets another adapter's factors at all.
#pragma once

#include <vector>

#include "linear.h"

namespace tenora {

struct LoraSlice {
  PackedMatrix b;      // [out of the slice, rank]
  int64_t a_column;    // first column of the slice in `a`
  int64_t y_column;    // first output column of the slice
  double scaling;
};

struct LoraModule {
  PackedMatrix a;  // [rank of all slices, in]
  int64_t num_slices;
  const LoraSlice* slices;
};

// The rows of one adapter: entries [first, first + count) of the step's row list.
struct LoraSegment {
  int64_t adapter, first, count;
};

struct LoraItem {
  const LoraModule* module;
  const int32_t* rows_of_segment;
  float* low_rank;      // [rows of the segment, rank of all slices]
  const LoraSlice* slice;  // null while shrinking
  int64_t first_row, rows, first_panel, last_panel;
};

constexpr int64_t LORA_ROW_BLOCK = 16 * MAX_TILE_ROWS;

struct LoraJob {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t y_stride;
  std::vector<LoraItem> items;

  void operator()(int64_t chunk, int) const {
    const LoraItem& item = items[chunk];
    const LoraModule& module = *item.module;
    const int32_t* rows = item.rows_of_segment + item.first_row;
    float* low_rank = item.low_rank + item.first_row * module.a.n;
    int64_t panel = item.first_panel;
    while (!item.slice && panel < item.last_panel)
      panel += rows_times_panels(
          module.a, module.a.kind, panel, item.last_panel, item.rows,
          [](int64_t) { return Epilogue{nullptr, 1.0f, false}; },
          [&](int64_t i, int64_t column, const void*& xi, float*& yi) {
            xi = x + rows[i] * x_stride;
            yi = low_rank + i * module.a.n + column;
          });
    while (item.slice && panel < item.last_panel) {
      const LoraSlice& slice = *item.slice;
      panel += rows_times_panels(
          slice.b, slice.b.kind, panel, item.last_panel, item.rows,
          [&](int64_t) { return Epilogue{nullptr, (float)slice.scaling, true}; },
          [&](int64_t i, int64_t column, const void*& xi, float*& yi) {
            xi = low_rank + i * module.a.n + slice.a_column;
            yi = y + rows[i] * y_stride + slice.y_column + column;
          });
    }
  }

  // Cuts one product into items of about 10 microseconds.
  void add(LoraItem item, int64_t count, const PackedMatrix& w) {
    int64_t panels = panels_of(w.n);
    for (int64_t row = 0; row < count; row += LORA_ROW_BLOCK) {
      item.first_row = row;
      item.rows = std::min(LORA_ROW_BLOCK, count - row);
      int64_t macs = std::max<int64_t>(1, std::max<int64_t>(item.rows, 4) * w.k * PANEL);
      int64_t group = std::max<int64_t>(1, 400'000 / macs);
      for (int64_t panel = 0; panel < panels; panel += group) {
        item.first_panel = panel;
        item.last_panel = std::min(panel + group, panels);
        items.push_back(item);
      }
    }
  }
};

// `modules` is indexed by a segment's adapter; null where an adapter leaves this product alone.
TN_INLINE void lora_add(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                        const LoraModule* const* modules, const LoraSegment* segments,
                        int64_t num_segments, const int32_t* row_list) {
  static thread_local LoraJob job;
  static thread_local std::vector<float> scratch;
  job.x = x, job.x_stride = x_stride, job.y = y, job.y_stride = y_stride;
  int64_t needed = 0;
  for (int64_t s = 0; s < num_segments; s++)
    if (const LoraModule* module = modules[segments[s].adapter])
      needed += segments[s].count * module->a.n;
  if ((int64_t)scratch.size() < needed) scratch.resize(needed);

  for (bool expands : {false, true}) {
    job.items.clear();
    float* low_rank = scratch.data();
    for (int64_t s = 0; s < num_segments; s++) {
      const LoraModule* module = modules[segments[s].adapter];
      if (!module) continue;
      int64_t count = segments[s].count;
      LoraItem item{module, row_list + segments[s].first, low_rank, nullptr, 0, 0, 0, 0};
      if (!expands) job.add(item, count, module->a);
      for (int64_t i = 0; expands && i < module->num_slices; i++) {
        item.slice = module->slices + i;
        job.add(item, count, item.slice->b);
      }
      low_rank += count * module->a.n;
    }
    run_chunks((int64_t)job.items.size(), job);
  }
}

}  // namespace tenora
