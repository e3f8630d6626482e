// A frozen weight W [n, k], packed into panels of PANEL output columns, and the one small product
// that everything here is made of: a tile of rows of x times a panel.
//
// Every output element is a single chain of fused multiply-adds in the order of k (one for each
// group of an INT8 weight, and one over the groups), so its bits depend on its own row of x and its
// own column of W: not on how many rows there are, which rows share a tile, or which thread runs it.
//
// A tile is up to MAX_TILE_ROWS rows times one panel, or up to half as many times two neighbours:
// few rows leave the processor waiting for its own sums unless it has more columns to add to.
//
// Storage of a panel, k after k (FLOAT32, FLOAT16, INT8) or pair of k after pair (BFLOAT16, where
// the even k is the low half of 32 bits): one row of PANEL columns each. The last panel is LANES
// wide when that is enough for its columns. Behind each group of INT8 stands a row of its steps.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "simd.h"

namespace tenora {

// INT8 weights are whole numbers of a step, a float32 that INT8_GROUP of k share in each column.
constexpr int64_t INT8_GROUP = 64;

struct PackedMatrix {
  int64_t kind, n, k;
  const void* data;
};

TN_INLINE int64_t panels_of(int64_t n) { return (n + PANEL - 1) / PANEL; }

TN_INLINE int panel_width(int64_t n, int64_t panel) {
  return n - panel * PANEL > LANES ? PANEL : LANES;
}

// Bytes of one column in one row of a panel: of one k, or of a pair of them.
TN_INLINE int64_t element_bytes(int64_t kind) {
  return kind == FLOAT16 ? 2 : kind == INT8 ? 1 : 4;
}

// Bytes of one column over all k.
TN_INLINE int64_t column_bytes(int64_t kind, int64_t k) {
  if (kind == BFLOAT16) return 4 * ((k + 1) / 2);
  int64_t step_bytes = kind == INT8 ? 4 * ((k + INT8_GROUP - 1) / INT8_GROUP) : 0;
  return element_bytes(kind) * k + step_bytes;
}

TN_INLINE const void* panel_data(const PackedMatrix& w, int64_t panel) {
  return (const char*)w.data + panel * PANEL * column_bytes(w.kind, w.k);
}

TN_INLINE int64_t packed_bytes(int64_t kind, int64_t n, int64_t k) {
  int64_t panels = panels_of(n);
  int64_t columns = panels ? (panels - 1) * PANEL + panel_width(n, panels - 1) : 0;
  return columns * column_bytes(kind, k);
}

// Column c of an INT8 panel, from its whole numbers and its steps; null for zeros.
TN_INLINE void pack_int8(const int8_t* source, const float* steps, int64_t k, int width, int c,
                         char* out) {
  for (int64_t group = 0; group * INT8_GROUP < k; group++) {
    int64_t last = std::min((group + 1) * INT8_GROUP, k);
    for (int64_t i = group * INT8_GROUP; i < last; i++, out += width)
      out[c] = source ? source[i] : 0;
    ((float*)out)[c] = steps ? steps[group] : 0.0f;
    out += width * sizeof(float);
  }
}

// Rows [first, last) of k, which are few enough that what is written stays in the first cache.
TN_INLINE void pack_rows(int64_t kind, const void* source, int64_t n, int64_t k, int64_t panel,
                         void* out, int64_t first, int64_t last) {
  int width = panel_width(n, panel);
  for (int c = 0; c < width; c++) {
    int64_t row = panel * PANEL + c;
    bool real = row < n;
    if (kind == FLOAT32) {
      for (int64_t i = first; i < last; i++)
        ((float*)out)[i * width + c] = real ? ((const float*)source)[row * k + i] : 0.0f;
    } else if (kind == FLOAT16) {
      for (int64_t i = first; i < last; i++)
        ((uint16_t*)out)[i * width + c] = real ? ((const uint16_t*)source)[row * k + i] : 0;
    } else {
      const uint16_t* from = (const uint16_t*)source + row * k;
      for (int64_t i = first; i < last; i += 2) {
        uint32_t low = real ? from[i] : 0, high = real && i + 1 < k ? from[i + 1] : 0;
        ((uint32_t*)out)[i / 2 * width + c] = low | high << 16;
      }
    }
  }
}

TN_INLINE void pack_panel(int64_t kind, const void* source, const float* steps, int64_t n,
                          int64_t k, int64_t panel, void* out) {
  if (kind == INT8) {
    int64_t groups = (k + INT8_GROUP - 1) / INT8_GROUP;
    for (int c = 0; c < panel_width(n, panel); c++) {
      int64_t row = panel * PANEL + c;
      bool real = row < n;
      pack_int8(real ? (const int8_t*)source + row * k : nullptr,
                real ? steps + row * groups : nullptr, k, panel_width(n, panel), c, (char*)out);
    }
    return;
  }
  constexpr int64_t BLOCK = 128;
  for (int64_t first = 0; first < k; first += BLOCK)
    pack_rows(kind, source, n, k, panel, out, first, std::min(first + BLOCK, k));
}

// What a tile reads and writes: pointers to the rows, so that rows need not be neighbours.
// Inputs are float32, or pairs of bfloat16 for a ROUNDED product.
struct TileRows {
  const void* x[MAX_TILE_ROWS];
  float* y[MAX_TILE_ROWS];  // at the first column of the first panel
  const char* ahead;        // where this tile begins to fetch what is read after its panels,
  int64_t ahead_step;       // and how many bytes further at each row of a panel
};

// A product of BFLOAT16 weights whose inputs were rounded to bfloat16 as well.
constexpr int64_t ROUNDED = 3;

// acc[i][j] += x[i][k] * w[j].
template <int M, int NV>
TN_INLINE void multiply_add(vf (&acc)[M][NV], const TileRows& rows, int64_t k, const vf (&w)[NV]) {
  unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
    vf x = splat(((const float*)rows.x[i])[k]);
    unrolled<NV>([&](auto j) TN_INLINE_LAMBDA { fma_into(acc[i][j], x, w[j]); });
  });
}

// Sums over all k of rows times the NV vectors of a panel, or of two panels `panel_bytes` apart.
template <int64_t KIND, int M, int NV>
TN_INLINE void accumulate(vf (&acc)[M][NV], const TileRows& rows, const char* panel,
                          int64_t panel_bytes, int64_t k, const char*& ahead) {
  constexpr int OF_PANEL = NV < 2 ? NV : 2;
  auto fetch_ahead = [&]() TN_INLINE_LAMBDA {
    __builtin_prefetch(ahead);
    if constexpr (NV > OF_PANEL) __builtin_prefetch(ahead + rows.ahead_step / 2);
    ahead += rows.ahead_step;
  };
  // vector j of a row that begins at `from` in the first panel
  auto vector_at = [&](const char* from, auto j, int64_t bytes) TN_INLINE_LAMBDA {
    return from + (j % OF_PANEL) * bytes + (j / OF_PANEL) * panel_bytes;
  };
  const char* from = panel;
  vf w[NV];
  if constexpr (KIND == ROUNDED) {
    for (int64_t pair = 0; pair < (k + 1) / 2; pair++, from += OF_PANEL * sizeof(vu)) {
      fetch_ahead();
      unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
        vu x = ((const uint32_t*)rows.x[i])[pair] - vu{};
        unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
          dot_pairs_into(acc[i][j], x, *(const vu*)vector_at(from, j, sizeof(vu)));
        });
      });
    }
  } else if constexpr (KIND == FLOAT32) {
    for (int64_t i = 0; i < k; i++, from += OF_PANEL * sizeof(vf)) {
      fetch_ahead();
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
        w[j] = *(const vf*)vector_at(from, j, sizeof(vf));
      });
      multiply_add(acc, rows, i, w);
    }
  } else if constexpr (KIND == BFLOAT16) {
    auto read_low = [&]() TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
        w[j] = (vf)(*(const vu*)vector_at(from, j, sizeof(vu)) << 16);
      });
    };
    int64_t i = 0;
    for (; i + 1 < k; i += 2, from += OF_PANEL * sizeof(vu)) {
      fetch_ahead();
      read_low();
      multiply_add(acc, rows, i, w);
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
        w[j] = high_halves((const vu*)vector_at(from, j, sizeof(vu)));
      });
      multiply_add(acc, rows, i + 1, w);
    }
    if (k % 2) {
      read_low();
      multiply_add(acc, rows, i, w);
    }
  } else if constexpr (KIND == INT8) {
    vf total[M][NV] = {};
    for (int64_t i = 0; i < k;) {
      for (int64_t last = std::min(i + INT8_GROUP, k); i < last; i++, from += OF_PANEL * LANES) {
        fetch_ahead();
        unrolled<NV>([&](auto j) TN_INLINE_LAMBDA { w[j] = load_int8(vector_at(from, j, LANES)); });
        multiply_add(acc, rows, i, w);
      }
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
        vf step = *(const vf*)vector_at(from, j, sizeof(vf));
        unrolled<M>([&](auto m) TN_INLINE_LAMBDA {
          fma_into(total[m][j], acc[m][j], step);
          acc[m][j] = vf{};
        });
      });
      from += OF_PANEL * sizeof(vf);
    }
    unrolled<M>([&](auto m) TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA { acc[m][j] = total[m][j]; });
    });
  } else {
#if defined(__F16C__)
    for (int64_t i = 0; i < k; i++, from += OF_PANEL * LANES * 2) {
      fetch_ahead();
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
        const char* halves = vector_at(from, j, LANES * 2);
#if defined(__AVX512F__)
        w[j] = (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)halves));
#else
        w[j] = (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)halves));
#endif
      });
      multiply_add(acc, rows, i, w);
    }
#endif
  }
}

// How a tile's sums become outputs: y = sums * scale + bias, added to what y holds if `adds`.
struct Epilogue {
  const float* bias;  // of the tile's columns, or null
  float scale;
  bool adds;
};

// Writes sums of the columns [first, last) of the tile, at most NV vectors.
template <int M, int NV>
TN_INLINE void write_tile(vf (&acc)[M][NV], const TileRows& rows, const Epilogue& end,
                          int64_t first, int64_t last) {
  if (last - first >= NV * LANES) {
    auto write = [&](auto adds) TN_INLINE_LAMBDA {
      unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
        unrolled<NV>([&](auto j) TN_INLINE_LAMBDA {
          float* y = rows.y[i] + first + j * LANES;
          vf value = acc[i][j] * end.scale;
          if constexpr (adds) value += load(y);
          store(y, value);
        });
      });
    };
    end.adds ? write(std::true_type{}) : write(std::false_type{});
  } else {
    float sums[M][NV * LANES];
    unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA { store(sums[i] + j * LANES, acc[i][j]); });
    });
    for (int i = 0; i < M; i++)
      for (int64_t c = first; c < last; c++) {
        float value = sums[i][c - first] * end.scale;
        rows.y[i][c] = end.adds ? value + rows.y[i][c] : value;
      }
  }
  if (!end.bias) return;
  for (int i = 0; i < M; i++)
    for (int64_t c = first; c < std::min<int64_t>(last, first + NV * LANES); c++)
      rows.y[i][c] += end.bias[c];
}

// M rows times the panels of `columns` columns that begin at `data`, NV vectors at a time.
template <int64_t KIND, int NV, int M>
void tile(const TileRows& rows, const char* data, int64_t panel_bytes, int64_t k,
          const Epilogue& end, int64_t columns) {
  constexpr int PANELS = NV == 4 ? 2 : 1;
  const char* ahead = rows.ahead;
  for (int64_t column = 0; column < columns; column += NV * LANES) {
    // where the sums will go: a store that waits for its line holds up all that come after it
    for (int i = 0; i < M; i++) __builtin_prefetch(rows.y[i] + column, 1);
    vf acc[M][NV];
    unrolled<M>([&](auto i) TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto j) TN_INLINE_LAMBDA { acc[i][j] = vf{}; });
    });
    accumulate<KIND>(acc, rows, data, panel_bytes, k, ahead);
    write_tile(acc, rows, end, column, columns);
    data += PANELS * panel_bytes;
  }
}

typedef void (*TileFn)(const TileRows&, const char*, int64_t, int64_t, const Epilogue&, int64_t);

template <int64_t KIND, int NV, int... M>
constexpr std::array<TileFn, sizeof...(M)> tiles_of(std::integer_sequence<int, M...>) {
  return {tile<KIND, NV, M + 1>...};
}

constexpr int MAX_WIDE_ROWS = MAX_TILE_ROWS / 2;  // of a tile over two panels

template <int64_t KIND, int NV>
constexpr auto TILES =
    tiles_of<KIND, NV>(std::make_integer_sequence<int, NV == 4 ? MAX_WIDE_ROWS : MAX_TILE_ROWS>{});

template <int NV>
TN_INLINE TileFn tile_for(int64_t kind, int rows) {
  return kind == FLOAT32    ? TILES<FLOAT32, NV>[rows - 1]
         : kind == BFLOAT16 ? TILES<BFLOAT16, NV>[rows - 1]
         : kind == FLOAT16  ? TILES<FLOAT16, NV>[rows - 1]
         : kind == INT8     ? TILES<INT8, NV>[rows - 1]
                            : TILES<ROUNDED, NV>[rows - 1];
}

// The largest of as few parts of `rows` as may have `most` each, when they are about even: a small
// rest would read a whole weight for a few rows.
TN_INLINE int64_t even_part(int64_t rows, int64_t most) {
  int64_t parts = std::max<int64_t>(1, (rows + most - 1) / most);
  return (rows + parts - 1) / parts;
}

// Panels that stay in the first cache beside the rows: a tile takes them all before the next does.
constexpr int64_t PASS_BYTES = 16 * 1024;

// Rows [0, count) times the panel and some of those after it, as a product of `kind`, which is the
// weight's own or ROUNDED. `row(i, column, x, y)`, called for one row after the other, gives row
// i's input and its output at the panel's first column, and `end_of(column)` the epilogue of the
// columns from there. `after` is what the caller reads behind the last panel, or null for what lies
// there. Returns how many panels it took.
template <typename EndOf, typename Row>
TN_INLINE int64_t rows_times_panels(const PackedMatrix& w, int64_t kind, int64_t panel,
                                    int64_t last_panel, int64_t count, const char* after,
                                    EndOf end_of, Row row) {
  int width = panel_width(w.n, panel);
  int64_t panel_bytes = width * column_bytes(w.kind, w.k), column = panel * PANEL;
  int64_t alike = last_panel - panel;
  if (alike > 1 && panel_width(w.n, last_panel - 1) != width) alike--;
  bool is_wide = count <= MAX_WIDE_ROWS && alike > 1;
  int64_t at_once = is_wide ? 2 : 1, fitting = PASS_BYTES / std::max<int64_t>(panel_bytes, 1);
  int64_t taken = std::max<int64_t>(1, std::min(fitting, alike) / at_once) * at_once;
  int64_t columns = std::min(taken * width, w.n - column);
  const char* data = (const char*)panel_data(w, panel);
  // The tiles of these panels fetch what follows them between them. Else the first tile of a panel
  // waits for memory and the others leave it idle. Behind the last panel lies the matrix that is
  // read next, where both share memory; fetching what is nobody's does no harm.
  int tiles = (int)((count + MAX_TILE_ROWS - 1) / MAX_TILE_ROWS);
  int per_tile = (int)count / tiles, larger = (int)count % tiles;  // 16 rows are 6, 5 and 5
  int64_t bytes = taken * panel_bytes;
  TileRows rows;
  rows.ahead = after && panel + taken >= last_panel ? after : data + bytes;
  rows.ahead_step = at_once * width * element_bytes(w.kind) / tiles;
  const Epilogue end = end_of(column);
  int64_t done = 0;
  for (int t = 0; t < tiles; t++, rows.ahead += bytes / tiles) {
    int m = per_tile + (t < larger);
    for (int i = 0; i < m; i++) row(done + i, column, rows.x[i], rows.y[i]);
    TileFn multiply = is_wide          ? tile_for<4>(kind, m)
                      : width == PANEL ? tile_for<2>(kind, m)
                                       : tile_for<1>(kind, m);
    multiply(rows, data, panel_bytes, w.k, end, columns);
    done += m;
  }
  return taken;
}

}  // namespace tenora
