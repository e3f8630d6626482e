// The largest output of each row of x W^T without most of the product.
//
// A screen holds W rounded to 8 bits. Whole-number products with x, rounded as well, cost a third of
// the exact ones and give each output but for an error that is bounded: with x' and w' the rounded
// ones,
//
//   |x w - x' w'|  =  |(x - x') w' + x (w - w')|  <=  |x - x'| |w'| + |x| |w - w'|
//
// in euclidean norms. Columns whose bound stays below an exact output cannot be the largest. The
// others are computed by the tile that computes the whole product, so the choice is the product's,
// to the bit and among equals. Source of the idea: FEXIPRO (Li et al., SIGMOD 2017).
#pragma once

#include <cmath>
#include <vector>

#include "linear.h"
#include "packed.h"
#include "pointwise.h"
#include "pool.h"

namespace tenora {

// Rounded weights and inputs are whole numbers of a step that a group of k shares. Pairs of their
// products, with the weight made positive, fit into 16 bits: 2 * 255 * 63 is below 2^15.
constexpr int SCREEN_COLUMNS = 16;  // of one panel
constexpr int SCREEN_GROUP = 64;    // k that share a step
constexpr int QUAD = 4;             // k whose products one instruction adds
constexpr int LARGEST_WEIGHT = 127, WEIGHT_OFFSET = 128, LARGEST_INPUT = 63;
constexpr float SMALLEST_WEIGHT = 1e-30f;  // in magnitude, of a group that is worth rounding
constexpr float SMALLEST_INPUT = 1e-15f;   // the same; squares of these are far from float32's end
// Added to the norm of a rounded column. With the smallest error of a row it makes a bound above what
// float32 loses below its normal range, and with an infinite error an infinite one.
constexpr float SMALLEST_COLUMN = 1e-20f;
// Norms of a column and of a row whose products certainly stay finite.
constexpr double LARGEST_COLUMN = 1e20, LARGEST_ROW = 1e15;

// Storage of a panel: for each group its quads of SCREEN_COLUMNS x QUAD bytes and a row of steps;
// then what |x - x'| and |x| are multiplied by.
struct Screen {
  int64_t n, k;
  const char* data;

  int64_t groups() const { return (k + SCREEN_GROUP - 1) / SCREEN_GROUP; }
  int64_t panels() const { return (n + SCREEN_COLUMNS - 1) / SCREEN_COLUMNS; }
  static constexpr int64_t GROUP_BYTES = SCREEN_COLUMNS * (SCREEN_GROUP + (int)sizeof(float));
  int64_t panel_bytes() const {
    return groups() * GROUP_BYTES + 2 * SCREEN_COLUMNS * (int64_t)sizeof(float);
  }
  int64_t bytes() const { return panels() * panel_bytes(); }
};

// Roundings of the exact product's sums and of the screen's own, against |x| (|w| + |w'|).
TN_INLINE double rounding_of(int64_t k) { return (2 * k + 64) * std::ldexp(1.0, -24); }

// Row `row` of a weight as it was given to `pack_panel`; the values that its products are made of.
TN_INLINE void read_weights(int64_t kind, const void* source, const float* steps, int64_t row,
                            int64_t k, double* out) {
  int64_t groups = (k + INT8_GROUP - 1) / INT8_GROUP;
  for (int64_t i = 0; i < k; i++) {
    int64_t at = row * k + i;
    if (kind == FLOAT32) {
      out[i] = ((const float*)source)[at];
    } else if (kind == BFLOAT16) {
      out[i] = bf16_to_float(((const uint16_t*)source)[at]);
    } else {
      out[i] = (double)((const int8_t*)source)[at] * steps[row * groups + i / INT8_GROUP];
    }
  }
}

// Rounds column `c` of the panel at `out`. Returns whether its products stay finite.
TN_INLINE bool round_column(const Screen& s, const double* weights, char* out, int c) {
  double rounded = 0, exact = 0, lost = 0;
  for (int64_t g = 0; g < s.groups(); g++, out += Screen::GROUP_BYTES) {
    int64_t first = g * SCREEN_GROUP, count = std::min<int64_t>(SCREEN_GROUP, s.k - first);
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
      if (!std::isfinite(weights[first + i])) return false;
      largest = std::max(largest, std::fabs(weights[first + i]));
    }
    float step = largest < SMALLEST_WEIGHT ? 0.0f : (float)(largest / LARGEST_WEIGHT);
    for (int64_t i = 0; i < SCREEN_GROUP; i++) {
      double w = i < count ? weights[first + i] : 0.0;
      double whole = step == 0.0f ? 0.0 : std::nearbyint(w / step);
      whole = std::min<double>(std::max<double>(whole, -LARGEST_WEIGHT), LARGEST_WEIGHT);
      out[i / QUAD * SCREEN_COLUMNS * QUAD + c * QUAD + i % QUAD] = (char)(whole + WEIGHT_OFFSET);
      exact += w * w, rounded += whole * step * whole * step;
      lost += (w - whole * step) * (w - whole * step);
    }
    ((float*)(out + SCREEN_COLUMNS * SCREEN_GROUP))[c] = step;
  }
  double rounding = rounding_of(s.k), up = 1.00001;  // `up`: of the norms and sums below
  double sums = rounding * (std::sqrt(exact) + std::sqrt(rounded));
  ((float*)out)[c] = (float)(std::sqrt(rounded) * (up + rounding) + SMALLEST_COLUMN);
  ((float*)out)[SCREEN_COLUMNS + c] = (float)((std::sqrt(lost) + sums) * up);
  return exact <= LARGEST_COLUMN * LARGEST_COLUMN;
}

// Fills `s` from a weight as `pack_panel` takes it. Returns whether all its products stay finite with
// rows up to LARGEST_ROW; what is packed of another weight is no screen.
TN_INLINE bool pack_screen(const Screen& s, int64_t kind, const void* source, const float* steps) {
  std::atomic<bool> is_bounded{true};
  for_rows(s.panels(), SCREEN_COLUMNS * s.k, [&](int64_t panel) {
    std::vector<double> weights(s.k);
    char* out = (char*)s.data + panel * s.panel_bytes();
    for (int c = 0; c < SCREEN_COLUMNS; c++) {
      // a column that is not there repeats the last one: its bound says nothing new
      int64_t row = std::min(panel * SCREEN_COLUMNS + c, s.n - 1);
      read_weights(kind, source, steps, row, s.k, weights.data());
      if (!round_column(s, weights.data(), out, c)) is_bounded = false;
    }
  });
  return is_bounded;
}

// A row of x as whole numbers of a step for each group, and how far that is from it.
struct ScreenedRow {
  const int8_t* whole;     // [groups * SCREEN_GROUP]
  const float* steps;      // [groups]
  const int32_t* offsets;  // [groups]: what WEIGHT_OFFSET adds to the sums, negative
  float error, norm;       // |x - x'| and |x|, rounded up
};

// One group of a row: `x` holds SCREEN_GROUP elements, zeros behind the last.
struct RoundedGroup {
  float step;
  int32_t sum;
  vf square, lost;  // sums in lanes: of the elements' squares, and of what rounding left of them

  RoundedGroup(const float* x, int8_t* whole) {
    constexpr int VECTORS = SCREEN_GROUP / LANES;
    vf largest{}, doubt{};
    for (int i = 0; i < VECTORS; i++) {
      vf v = load(x + i * LANES);
      largest = max_of(max_of(v, -v), largest);
      doubt += v - v;  // NaN where v is not finite
    }
    float top = max_of_lanes(largest);
    bool is_rounded = top >= SMALLEST_INPUT;
    step = is_rounded ? top / LARGEST_INPUT : 0.0f;
    const vf per_step = splat(is_rounded ? LARGEST_INPUT / top : 0.0f);
    const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    vi sums{};
    square = lost = doubt;
    for (int i = 0; i < VECTORS; i++) {
      vf v = load(x + i * LANES), q = (v * per_step + magic) - magic, left = v - q * step;
      square += v * v, lost += left * left;
      vi numbers = __builtin_convertvector(q, vi);
      sums += numbers;
      for (int lane = 0; lane < LANES; lane++) whole[i * LANES + lane] = (int8_t)numbers[lane];
    }
    sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
  }
};

// Rounds `x` [k], whose elements `read` turns into those of the product. The error is NaN where one
// is not finite, and infinite where sums might overflow.
template <typename Read>
TN_INLINE ScreenedRow screened_row(const float* x, Read read, int64_t k, int8_t* whole,
                                   float* steps, int32_t* offsets) {
  vf square{}, lost{};
  for (int64_t first = 0, g = 0; first < k; first += SCREEN_GROUP, g++) {
    int64_t count = std::min<int64_t>(SCREEN_GROUP, k - first);
    float values[SCREEN_GROUP] = {};
    for (int64_t i = 0; i < count; i++) values[i] = read(x[first + i]);
    RoundedGroup group(values, whole + first);
    steps[g] = group.step, offsets[g] = -WEIGHT_OFFSET * group.sum;
    square += group.square, lost += group.lost;
  }
  // float32 sums of k squares, differences of the size of x's last bits, and what is not rounded
  double slack = 1.0 + k * std::ldexp(1.0, -23), bits = std::ldexp(1.0, -22);
  double tiny = std::sqrt((double)k) * SMALLEST_INPUT;
  double norm = std::sqrt((double)sum_of(square)) * slack + tiny;
  double error = std::sqrt((double)sum_of(lost)) * slack + norm * bits + tiny;
  if (norm > LARGEST_ROW) {
    std::fill_n(steps, (k + SCREEN_GROUP - 1) / SCREEN_GROUP, 0.0f);
    error = std::numeric_limits<double>::infinity();
  }
  if (std::isnan(norm)) error = norm;
  return {whole, steps, offsets, (float)error, (float)norm};
}

#if defined(__AVX2__)

constexpr int SCREEN_ROWS = 4;  // of a tile: eight sums, two weights, an input and a one in registers

// acc += the sum of four products in each lane: weights without sign, inputs with one. In assembly
// for the same reason as `fma_into`.
TN_INLINE void add_quads(__m256i& acc, __m256i w, __m256i x, __m256i ones) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
  acc = _mm256_dpbusd_epi32(acc, w, x);
#elif defined(__AVXVNNI__)
  acc = _mm256_dpbusd_avx_epi32(acc, w, x);
#else
  __m256i sum = acc, products;
  asm("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
      : "+x"(sum), "=&x"(products)
      : "x"(w), "x"(x), "x"(ones));
  acc = sum;
#endif
}

TN_INLINE float max_of_eight(__m256 v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// For M rows, the largest bound of a panel's columns.
template <int M>
TN_INLINE void screen_tile(const Screen& s, const ScreenedRow* rows, const char* panel,
                           const char* ahead, int64_t ahead_step, float* bounds) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 total[M][2];
  unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
    total[i][0] = total[i][1] = _mm256_setzero_ps();
  });
  for (int64_t g = 0; g < s.groups(); g++) {
    __m256i acc[M][2];
    unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
      acc[i][0] = acc[i][1] = _mm256_set1_epi32(rows[i].offsets[g]);
    });
#pragma GCC unroll 16
    for (int q = 0; q < SCREEN_GROUP; q += QUAD, panel += SCREEN_COLUMNS * QUAD) {
      __builtin_prefetch(ahead);
      ahead += ahead_step;
      __m256i low = _mm256_loadu_si256((const __m256i*)panel);
      __m256i high = _mm256_loadu_si256((const __m256i*)panel + 1);
      unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
        int32_t four;
        memcpy(&four, rows[i].whole + g * SCREEN_GROUP + q, QUAD);
        __m256i x = _mm256_set1_epi32(four);
        add_quads(acc[i][0], low, x, ones);
        add_quads(acc[i][1], high, x, ones);
      });
    }
    __m256 low = _mm256_loadu_ps((const float*)panel);
    __m256 high = _mm256_loadu_ps((const float*)panel + 8);
    panel += SCREEN_COLUMNS * sizeof(float);
    unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
      __m256 step = _mm256_set1_ps(rows[i].steps[g]);
      total[i][0] += _mm256_cvtepi32_ps(acc[i][0]) * (low * step);
      total[i][1] += _mm256_cvtepi32_ps(acc[i][1]) * (high * step);
    });
  }
  const float* norms = (const float*)panel;
  unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
    __m256 error = _mm256_set1_ps(rows[i].error), norm = _mm256_set1_ps(rows[i].norm);
    __m256 low = total[i][0] + error * _mm256_loadu_ps(norms) +
                 norm * _mm256_loadu_ps(norms + SCREEN_COLUMNS);
    __m256 high = total[i][1] + error * _mm256_loadu_ps(norms + 8) +
                  norm * _mm256_loadu_ps(norms + SCREEN_COLUMNS + 8);
    bounds[i] = max_of_eight(_mm256_max_ps(low, high));
  });
}

// The tiles of a panel fetch between them the one that begins at `ahead`.
TN_INLINE void screen_rows(const Screen& s, const ScreenedRow* rows, int64_t count,
                           const char* panel, const char* ahead, float* bounds) {
  int64_t tiles = (count + SCREEN_ROWS - 1) / SCREEN_ROWS, part = s.panel_bytes() / tiles;
  int64_t step = SCREEN_COLUMNS * QUAD / tiles;
  auto tile = [&](auto m) TN_INLINE_LAMBDA {
    screen_tile<m>(s, rows, panel, ahead, step, bounds);
    rows += m, bounds += m, ahead += part;
  };
  for (; count >= SCREEN_ROWS; count -= SCREEN_ROWS)
    tile(std::integral_constant<int, SCREEN_ROWS>{});
  if (count == 3) tile(std::integral_constant<int, 3>{});
  if (count == 2) tile(std::integral_constant<int, 2>{});
  if (count == 1) tile(std::integral_constant<int, 1>{});
}

constexpr bool HAS_SCREENS = true;

#else

constexpr bool HAS_SCREENS = false;

TN_INLINE void screen_rows(const Screen&, const ScreenedRow*, int64_t, const char*, const char*,
                           float*) {}

#endif

// What is asked of one product: its largest output in each row, among columns that count.
struct LargestArgs {
  const Screen* screen;
  const PackedMatrix* w;  // the same weight, whose products are exact
  const float* x;         // [rows, k]
  int64_t x_stride, rows, rounds;  // `rounds` as in `linear_job`
  const uint8_t* is_left_out;      // [n]
  int64_t* index;                  // [rows]: lowest among equals; 0 where nothing is comparable
  uint8_t* is_finite;              // [rows]: whether all outputs are
  int64_t* exact_panels;           // [rows]: how many panels of w were computed
};

// Three jobs: bounds of all panels; for each row the exact outputs of the panel with the largest
// bound, whose largest is what others must reach; the exact outputs of panels that may, for all rows
// that want them at once, so that rows whose outputs are alike cost a product and not one each.
class LargestOutputs {
 public:
  LargestOutputs(const LargestArgs& args) : a(args), s(*args.screen) {}

  void run() {
    if (a.rows == 0) return;
    kind_ = a.w->kind;
    if (a.rounds && kind_ == BFLOAT16) {
      kind_ = ROUNDED;
      pairs_ = rounded_rows(a.x, a.x_stride, a.rows, s.k);
    }
    round_rows();
    bound_panels();
    int64_t threads = pool().threads();
    best_ = memory<Best>((1 + threads) * a.rows);
    std::fill_n(best_, (1 + threads) * a.rows, Best{});
    threshold_ = memory<float, THRESHOLDS>(a.rows);
    done_ = memory<int64_t>(a.rows);
    for_rows(a.rows, ELEMENTS_PER_CLAIM, [&](int64_t row) { compute_top(row); });
    compute_others();
    for (int64_t row = 0; row < a.rows; row++) {
      Best& best = best_[row];
      for (int64_t t = 1; t <= threads; t++) best.join(best_[t * a.rows + row]);
      a.index[row] = best.index < 0 ? 0 : best.index;
      a.is_finite[row] = best.is_finite && !std::isnan(rows_[row].error);
      a.exact_panels[row] = best.panels;
    }
  }

 private:
  struct Best {
    float value = -std::numeric_limits<float>::infinity();
    int64_t index = -1;
    int64_t panels = 0;
    bool is_finite = true;

    void join(const Best& other) {
      panels += other.panels, is_finite = is_finite && other.is_finite;
      if (other.index >= 0) offer(other.value, other.index);
    }

    void offer(float output, int64_t column) {
      if (index >= 0 && !(output > value || (output == value && column < index))) return;
      value = output, index = column;
    }
  };

  // The panel of w that a row's outputs are largest in, by their bounds.
  struct Top {
    float bound = -std::numeric_limits<float>::infinity();
    int64_t panel = 0;
  };

  enum Memory { STEPS, BOUNDS, THRESHOLDS, OUTPUTS };

  // Of the calling thread, and kept for its next call.
  template <typename T, Memory WHICH = STEPS>
  static T* memory(int64_t count) {
    static thread_local std::vector<T> kept;
    if ((int64_t)kept.size() < count) kept.resize(count);
    return kept.data();
  }

  void round_rows() {
    int64_t groups = s.groups(), width = groups * SCREEN_GROUP;
    int8_t* all_whole = memory<int8_t>(a.rows * width);
    float* all_steps = memory<float, STEPS>(a.rows * groups);
    int32_t* all_offsets = memory<int32_t>(a.rows * groups);
    rows_ = memory<ScreenedRow>(a.rows);
    for_rows(a.rows, 8 * s.k, [=](int64_t row) {
      const float* x = a.x + row * a.x_stride;
      int8_t* whole = all_whole + row * width;
      float* steps = all_steps + row * groups;
      int32_t* offsets = all_offsets + row * groups;
      rows_[row] = kind_ == ROUNDED
                       ? screened_row(x, [](float v) { return bf16_to_float(float_to_bf16(v)); },
                                      s.k, whole, steps, offsets)
                       : screened_row(x, [](float v) { return v; }, s.k, whole, steps, offsets);
    });
  }

  // Bounds of each panel's rows, and each claim's largest.
  void bound_panels() {
    int64_t panels = s.panels(), claim = panels_per_claim(panels, a.rows, (s.k + 2) / 3);
    claims_ = (panels + claim - 1) / claim;
    bounds_ = memory<float, BOUNDS>(panels * a.rows);
    tops_ = memory<Top>(claims_ * a.rows);
    auto job = [&](int64_t chunk, int) {
      Top* tops = tops_ + chunk * a.rows;
      std::fill_n(tops, a.rows, Top{});
      int64_t last = std::min(panels, (chunk + 1) * claim), bytes = s.panel_bytes();
      int64_t after = (chunk + pool().threads()) * claim;  // what this thread will take next
      for (int64_t panel = chunk * claim; panel < last; panel++) {
        int64_t ahead = panel + 1 < last ? panel + 1 : after;
        float* bounds = bounds_ + panel * a.rows;
        screen_rows(s, rows_, a.rows, s.data + panel * bytes, s.data + ahead * bytes, bounds);
        for (int64_t row = 0; row < a.rows; row++)
          if (bounds[row] > tops[row].bound)
            tops[row] = {bounds[row], panel * SCREEN_COLUMNS / PANEL};
      }
    };
    run_chunks(claims_, job);
  }

  void compute_top(int64_t row) {
    float& threshold = threshold_[row];
    done_[row] = -1;
    if (std::isnan(rows_[row].error)) {
      threshold = std::numeric_limits<float>::infinity();  // there is nothing to choose
      return;
    }
    if (std::isinf(rows_[row].error)) {
      threshold = -std::numeric_limits<float>::infinity();  // every output is to be looked at
      return;
    }
    Top top = tops_[row];
    for (int64_t chunk = 1; chunk < claims_; chunk++)
      if (tops_[chunk * a.rows + row].bound > top.bound) top = tops_[chunk * a.rows + row];
    int32_t only = (int32_t)row;
    compute(top.panel, &only, 1, [&](int64_t) -> Best& { return best_[row]; });
    threshold = best_[row].value;
    done_[row] = top.panel;
  }

  void compute_others() {
    int64_t panels = panels_of(s.n), claim = std::max<int64_t>(1, panels / (8 * pool().threads()));
    auto job = [&](int64_t chunk, int thread) {
      int32_t* rows = memory<int32_t, OUTPUTS>(a.rows);
      int64_t last = std::min(panels, (chunk + 1) * claim);
      for (int64_t panel = chunk * claim; panel < last; panel++) {
        int64_t count = rows_that_want(panel, rows);
        if (count == 0) continue;
        compute(panel, rows, count,
                [&](int64_t row) -> Best& { return best_[(1 + thread) * a.rows + row]; });
      }
    };
    run_chunks((panels + claim - 1) / claim, job);
  }

  int64_t rows_that_want(int64_t panel, int32_t* rows) const {
    constexpr int64_t PARTS = std::max(1, PANEL / SCREEN_COLUMNS);
    int64_t count = 0;
    for (int64_t part = panel * PARTS; part < std::min((panel + 1) * PARTS, s.panels()); part++) {
      const float* bounds = bounds_ + part * a.rows;
      for (int64_t row = 0; row < a.rows; row++) {
        if (!(bounds[row] >= threshold_[row]) || done_[row] == panel) continue;
        if (part > panel * PARTS && std::find(rows, rows + count, row) != rows + count) continue;
        rows[count++] = (int32_t)row;
      }
    }
    return count;
  }

  // The exact outputs of one panel of w for some rows.
  template <typename BestOf>
  void compute(int64_t panel, const int32_t* rows, int64_t count, BestOf best_of) const {
    float* outputs = memory<float, OUTPUTS>(count * PANEL);
    rows_times_panels(
        *a.w, kind_, panel, panel + 1, count, nullptr,
        [](int64_t) { return Epilogue{nullptr, 1.0f, false}; },
        [&](int64_t i, int64_t, const void*& x, float*& y) {
          x = kind_ == ROUNDED ? (const void*)(pairs_ + rows[i] * ((s.k + 1) / 2))
                               : (const void*)(a.x + rows[i] * a.x_stride);
          y = outputs + i * PANEL;
        });
    int64_t first = panel * PANEL, columns = std::min<int64_t>(PANEL, s.n - first);
    for (int64_t i = 0; i < count; i++) {
      Best& best = best_of(rows[i]);
      best.panels++;
      for (int64_t c = 0; c < columns; c++) {
        float output = outputs[i * PANEL + c];
        if (!std::isfinite(output)) best.is_finite = false;
        if (!a.is_left_out[first + c]) best.offer(output, first + c);
      }
    }
  }

  const LargestArgs& a;
  const Screen& s;
  int64_t kind_ = 0, claims_ = 0;
  const uint32_t* pairs_ = nullptr;
  ScreenedRow* rows_ = nullptr;
  float* bounds_ = nullptr;  // [panels of the screen, rows]
  Top* tops_ = nullptr;      // [claims, rows]
  float* threshold_ = nullptr;  // what a bound has to reach
  int64_t* done_ = nullptr;     // the panel that the threshold is from, or -1
  Best* best_ = nullptr;        // [1 + threads, rows]; the first is what the others are joined to
};

}  // namespace tenora
