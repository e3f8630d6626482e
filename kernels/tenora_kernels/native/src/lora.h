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

// A step's rows gathered by adapter; none where no row has one.
struct LoraRows {
  const LoraSegment* segments;
  int64_t num_segments;
  const int32_t* rows;
};

// Some rows of a segment times some panels of A, or of the B of one slice.
struct LoraItem {
  const LoraModule* module;
  const LoraSlice* slice;  // null while shrinking
  const int32_t* rows;     // of x and y
  float* low_rank;         // [rows, rank of all slices]
  int64_t num_rows, first_panel, last_panel;
};

constexpr int64_t LORA_ROW_BLOCK = 16 * MAX_TILE_ROWS;

// A product and the adapters of its rows, as one job: nobody waits for the last chunk of one part
// before the first of the next. The shrinks, which wait for memory, stand between the chunks of the
// product, which wait for arithmetic. The expands come last: they add to what the product wrote,
// and each begins when no chunk before them is left.
class AdaptedJob {
 public:
  AdaptedJob(const LinearJob* product, const float* x, int64_t x_stride, float* y, int64_t y_stride)
      : product_(product), x_(x), x_stride_(x_stride), y_(y), y_stride_(y_stride) {}

  // `modules` is indexed by a segment's adapter; null where an adapter leaves this product alone.
  void run(const LoraModule* const* modules, const LoraRows& by_adapter) {
    add_items(modules, by_adapter);
    before_expands_ = (product_ ? product_->chunks : 0) + num_shrinks_;
    run_chunks(before_expands_ + num_items_ - num_shrinks_, *this);
  }

  void operator()(int64_t chunk, int thread) {
    if (chunk >= before_expands_) {
      spin_until([&] { return done_.load(std::memory_order_acquire) >= before_expands_; });
      expand(num_shrinks_ + chunk - before_expands_);
      return;
    }
    int64_t item = chunk * num_shrinks_ / before_expands_;
    if ((chunk + 1) * num_shrinks_ / before_expands_ > item) {
      shrink(item);
    } else {
      (*product_)(chunk - item, thread);
    }
    done_.fetch_add(1, std::memory_order_release);
  }

 private:
  void shrink(int64_t index) const {
    const LoraItem& item = items_[index];
    const PackedMatrix& a = item.module->a;
    const char* after = first_of(index + pool().threads());
    for (int64_t panel = item.first_panel; panel < item.last_panel;)
      panel += rows_times_panels(
          a, a.kind, panel, item.last_panel, item.num_rows, after,
          [](int64_t) { return Epilogue{nullptr, 1.0f, false}; },
          [&](int64_t i, int64_t column, const void*& xi, float*& yi) {
            xi = x_ + item.rows[i] * x_stride_;
            yi = item.low_rank + i * a.n + column;
          });
  }

  void expand(int64_t index) const {
    const LoraItem& item = items_[index];
    const LoraSlice& slice = *item.slice;
    const char* after = first_of(index + pool().threads());
    int64_t rank = item.module->a.n;
    for (int64_t panel = item.first_panel; panel < item.last_panel;)
      panel += rows_times_panels(
          slice.b, slice.b.kind, panel, item.last_panel, item.num_rows, after,
          [&](int64_t) { return Epilogue{nullptr, (float)slice.scaling, true}; },
          [&](int64_t i, int64_t column, const void*& xi, float*& yi) {
            xi = item.low_rank + i * rank + slice.a_column;
            yi = y_ + item.rows[i] * y_stride_ + slice.y_column + column;
          });
  }

  // Where the weights of an item begin, or null behind the last.
  const char* first_of(int64_t index) const {
    if (index >= num_items_) return nullptr;
    const LoraItem& item = items_[index];
    const PackedMatrix& w = item.slice ? item.slice->b : item.module->a;
    return (const char*)panel_data(w, item.first_panel);
  }

  void add_items(const LoraModule* const* modules, const LoraRows& by_adapter) {
    std::vector<LoraItem>& all = items();
    all.clear();
    float* scratch = low_rank_memory(modules, by_adapter);
    for (bool expands : {false, true}) {
      float* low_rank = scratch;
      for (int64_t s = 0; s < by_adapter.num_segments; s++) {
        const LoraSegment& segment = by_adapter.segments[s];
        const LoraModule* module = modules[segment.adapter];
        if (!module) continue;
        LoraItem item{module, nullptr, by_adapter.rows + segment.first, low_rank, 0, 0, 0};
        if (!expands) cut(item, segment.count, module->a);
        for (int64_t i = 0; expands && i < module->num_slices; i++) {
          item.slice = module->slices + i;
          cut(item, segment.count, item.slice->b);
        }
        low_rank += segment.count * module->a.n;
      }
      if (!expands) num_shrinks_ = (int64_t)all.size();
    }
    items_ = all.data(), num_items_ = (int64_t)all.size();
  }

  // Cuts `count` rows times w into items of about 10 microseconds.
  void cut(LoraItem item, int64_t count, const PackedMatrix& w) {
    int64_t panels = panels_of(w.n), rank = item.module->a.n;
    for (int64_t row = 0; row < count; row += item.num_rows) {
      item.num_rows = even_part(count - row, LORA_ROW_BLOCK);
      int64_t macs = std::max<int64_t>(1, std::max<int64_t>(item.num_rows, 4) * w.k * PANEL);
      int64_t group = std::max<int64_t>(1, 400'000 / macs);
      for (int64_t panel = 0; panel < panels; panel += group) {
        item.first_panel = panel;
        item.last_panel = std::min(panel + group, panels);
        items().push_back(item);
      }
      item.rows += item.num_rows, item.low_rank += item.num_rows * rank;
    }
  }

  static float* low_rank_memory(const LoraModule* const* modules, const LoraRows& by_adapter) {
    static thread_local std::vector<float> memory;
    int64_t needed = 0;
    for (int64_t s = 0; s < by_adapter.num_segments; s++)
      if (const LoraModule* module = modules[by_adapter.segments[s].adapter])
        needed += by_adapter.segments[s].count * module->a.n;
    if ((int64_t)memory.size() < needed) memory.resize(needed);
    return memory.data();
  }

  // Kept between jobs for its memory.
  static std::vector<LoraItem>& items() {
    static thread_local std::vector<LoraItem> all;
    return all;
  }

  const LinearJob* product_;
  const float* x_;
  int64_t x_stride_;
  float* y_;
  int64_t y_stride_;
  const LoraItem* items_ = nullptr;
  int64_t num_items_ = 0, num_shrinks_ = 0, before_expands_ = 0;
  std::atomic<int64_t> done_{0};
};

}  // namespace tenora
