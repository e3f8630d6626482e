// One tile of positions: scores of some query rows with its keys, and its values mixed by weights.
//
// A score is one chain of fused multiply-adds in the order of the elements, and a mixed element one
// in the order of the positions: the same bits whatever rows or positions are computed beside it.
#pragma once

#include <algorithm>
#include <vector>

#include "kv_cache.h"
#include "simd.h"

namespace tenora {

constexpr int TILE = 64;   // positions
constexpr int SLOTS = 16;  // positions whose keys stand element by element
constexpr int TILE_GROUPS = TILE / SLOTS;
constexpr int SLOT_VECTORS = SLOTS / LANES;
constexpr int GROUPS_AT_ONCE = 4 / SLOT_VECTORS;  // with 3 rows, 12 accumulators of scores
constexpr int LINE = 64;  // bytes of a cache line

// Where the keys and values of a tile stand; groups behind the last repeat it, so that fetching
// needs no end.
template <typename E>
struct TileKV {
  const E* keys[TILE_GROUPS];    // [head_dim, SLOTS], elements `key_stride` apart
  const E* values[TILE_GROUPS];  // [SLOTS, head_dim]
  int64_t key_stride = 0, count = 0;
  std::vector<E> copied_keys, copied_values;

  // Positions [first, first + positions) of the sequence whose blocks are `table`. What does not
  // stand in groups in the cache is copied.
  void find(const KVCache& cache, int64_t head, const int32_t* table, int64_t first,
            int64_t positions) {
    bool in_groups = cache.block_size % SLOTS == 0;
    bool keys_stand = in_groups && cache.key_slot_stride == 1;
    int64_t d = cache.head_dim;
    count = positions;
    key_stride = keys_stand ? cache.key_dim_stride : SLOTS;
    if (!keys_stand) copy_keys(cache, head, table, first);
    if (!in_groups) copy_values(cache, head, table, first);
    for (int g = 0; g < TILE_GROUPS; g++) {
      int64_t group = std::min<int64_t>(g, (count - 1) / SLOTS), at = first + group * SLOTS;
      int64_t block = cache.offset_of(head, table[at / cache.block_size]);
      int64_t slot = at % cache.block_size;
      keys[g] = keys_stand ? (const E*)cache.keys + block + slot
                           : copied_keys.data() + group * SLOTS * d;
      values[g] = in_groups ? (const E*)cache.values + block + slot * d
                            : copied_values.data() + group * SLOTS * d;
    }
  }

 private:
  void copy_keys(const KVCache& cache, int64_t head, const int32_t* table, int64_t first) {
    int64_t d = cache.head_dim;
    copied_keys.resize(TILE * d);
    for (int64_t j = 0; j < count; j++) {
      const E* from = (const E*)cache.keys + cache.key_offset(head, table, first + j);
      E* to = copied_keys.data() + j / SLOTS * SLOTS * d + j % SLOTS;
      for (int64_t i = 0; i < d; i++) to[i * SLOTS] = from[i * cache.key_dim_stride];
    }
  }

  void copy_values(const KVCache& cache, int64_t head, const int32_t* table, int64_t first) {
    int64_t d = cache.head_dim;
    copied_values.resize(TILE * d);
    for (int64_t j = 0; j < count; j++) {
      const E* from = (const E*)cache.values + cache.value_offset(head, table, first + j);
      memcpy(copied_values.data() + j * d, from, d * sizeof(E));
    }
  }
};

// Elements are read in spans of two vectors. Those of a span of bfloat16 are the even and the odd
// ones, because that is how a register of pairs comes apart.
constexpr int SPAN = 2 * LANES;

TN_INLINE int64_t padded(int64_t d) { return (d + SPAN - 1) / SPAN * SPAN; }

template <int PART>
TN_INLINE vf half_of_span(const float* p) {
  return load(p + PART * LANES);
}

template <int PART>
TN_INLINE vf half_of_span(const Bf16* p) {
  vu pairs = *(const vu*)p;
  return (vf)(PART == 0 ? pairs << 16 : pairs >> 16 << 16);
}

#if defined(__AVX2__) && !defined(__AVX512F__)
alignas(32) constexpr uint32_t HIGH_HALVES[LANES] = {0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                     0xffff0000u, 0xffff0000u, 0xffff0000u,
                                                     0xffff0000u, 0xffff0000u};
#define TN_ADD_TO_THREE \
  "vfmadd231ps %3, %5, %0\n\tvfmadd231ps %3, %6, %1\n\tvfmadd231ps %3, %7, %2"
#endif

// acc[r][v] += factors[r] * half PART of the span at p, for all rows r.
template <int PART, int R, int N, typename E>
TN_INLINE void add_half(vf (&acc)[R][N], int v, const vf (&factors)[R], const E* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Twelve accumulators, three factors and one temporary are all registers that there are; left
  // alone, the compiler keeps one value more, and an accumulator goes through memory each time.
  if constexpr (R == 3 && std::is_same_v<E, Bf16>) {
    vf a = acc[0][v], b = acc[1][v], c = acc[2][v], x;
    if constexpr (PART == 0) {
      asm("vmovups %4, %3\n\tvpslld $16, %3, %3\n\t" TN_ADD_TO_THREE
          : "+x"(a), "+x"(b), "+x"(c), "=&x"(x)
          : "m"(*(const vu*)p), "x"(factors[0]), "x"(factors[1]), "x"(factors[2]));
    } else {
      asm("vmovups %4, %3\n\tvandps %8, %3, %3\n\t" TN_ADD_TO_THREE
          : "+x"(a), "+x"(b), "+x"(c), "=&x"(x)
          : "m"(*(const vu*)p), "x"(factors[0]), "x"(factors[1]), "x"(factors[2]),
            "m"(HIGH_HALVES));
    }
    acc[0][v] = a, acc[1][v] = b, acc[2][v] = c;
    return;
  }
#endif
  vf x = half_of_span<PART>(p);
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][v], factors[r], x); });
}
#undef TN_ADD_TO_THREE

// The same with vector V of the SLOTS elements at p.
template <int V, int R, int N, typename E>
TN_INLINE void add_slots(vf (&acc)[R][N], int v, const vf (&factors)[R], const E* p) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<E, Bf16>) {
    __m256i slots = _mm256_loadu_si256((const __m256i*)p);
    vf x = (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(slots), 16);
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][v], factors[r], x); });
    return;
  }
#endif
  add_half<V % 2>(acc, v, factors, p + V / 2 * SPAN);
}

// Stores the vectors of SLOTS elements E in the order of the slots.
template <typename E>
TN_INLINE void store_slots(const vf (&v)[SLOT_VECTORS], float* out) {
  if constexpr (std::is_same_v<E, float> || SLOT_VECTORS == 1) {
    unrolled<SLOT_VECTORS>([&](auto i) TN_INLINE_LAMBDA { store(out + i * LANES, v[i]); });
    return;
  }
#if defined(__AVX2__) && !defined(__AVX512F__)
  __m256 low = _mm256_unpacklo_ps((__m256)v[0], (__m256)v[1]);
  __m256 high = _mm256_unpackhi_ps((__m256)v[0], (__m256)v[1]);
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(low, high, 0x20));
  _mm256_storeu_ps(out + LANES, _mm256_permute2f128_ps(low, high, 0x31));
#else
  for (int slot = 0; slot < SLOTS; slot++)
    out[slot] = v[slot / SPAN * 2 + slot % 2][slot % SPAN / 2];
#endif
}

// scores[r][j] = q[r] . keys[j] for the positions [first, last) and others near them.
template <int R, typename E>
TN_INLINE void score(const float* const (&q)[R], const TileKV<E>& kv, const TileKV<E>* next,
                     int64_t first, int64_t last, int64_t d, float* const (&scores)[R]) {
  constexpr int64_t AT_ONCE = SLOTS * GROUPS_AT_ONCE;
  for (int64_t j = first / AT_ONCE * AT_ONCE; j < last; j += AT_ONCE) {
    int64_t group = j / SLOTS;
    const E *keys[GROUPS_AT_ONCE], *ahead[GROUPS_AT_ONCE];
    unrolled<GROUPS_AT_ONCE>([&](auto g) TN_INLINE_LAMBDA {
      keys[g] = kv.keys[group + g];
      ahead[g] = (next ? *next : kv).keys[group + g];
    });
    vf acc[R][4];
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
      unrolled<4>([&](auto v) TN_INLINE_LAMBDA { acc[r][v] = vf{}; });
    });
    for (int64_t i = 0, at = 0; i < d; i++, at += kv.key_stride) {
      unrolled<GROUPS_AT_ONCE>([&](auto g) TN_INLINE_LAMBDA { __builtin_prefetch(ahead[g] + at); });
      vf x[R];
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { x[r] = splat(q[r][i]); });
      unrolled<4>([&](auto v) TN_INLINE_LAMBDA {
        add_slots<v % SLOT_VECTORS>(acc, v, x, keys[v / SLOT_VECTORS] + at);
      });
    }
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
      unrolled<GROUPS_AT_ONCE>([&](auto g) TN_INLINE_LAMBDA {
        vf of_group[SLOT_VECTORS];
        unrolled<SLOT_VECTORS>([&](auto v) TN_INLINE_LAMBDA {
          of_group[v] = acc[r][g * SLOT_VECTORS + v];
        });
        store_slots<E>(of_group, scores[r] + j + g * SLOTS);
      });
    });
  }
}

// mixed[r][at ...] += sum over j of weights[r][j] * values[j], of SPANS spans from element `at`.
template <int R, int SPANS, typename E>
TN_INLINE void mix_spans(const float* const (&weights)[R], const TileKV<E>& kv,
                         const TileKV<E>* next, int64_t first, int64_t last, int64_t d, int64_t at,
                         float* const (&mixed)[R]) {
  vf acc[R][2 * SPANS];
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<2 * SPANS>([&](auto v) TN_INLINE_LAMBDA {
      acc[r][v] = load(mixed[r] + at + v * LANES);
    });
  });
  for (int64_t j = first; j < last;) {
    int64_t group = j / SLOTS, end = std::min(last, (group + 1) * SLOTS);
    int64_t offset = j % SLOTS * d + at;
    const E *value = kv.values[group] + offset, *ahead = (next ? *next : kv).values[group] + offset;
    for (; j < end; j++, value += d, ahead += d) {
      for (int i = 0; i < SPANS * SPAN; i += LINE / (int)sizeof(E)) __builtin_prefetch(ahead + i);
      vf w[R];
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { w[r] = splat(weights[r][j]); });
      unrolled<2 * SPANS>([&](auto v) TN_INLINE_LAMBDA {
        add_half<v % 2>(acc, v, w, value + v / 2 * SPAN);
      });
    }
  }
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<2 * SPANS>([&](auto v) TN_INLINE_LAMBDA {
      store(mixed[r] + at + v * LANES, acc[r][v]);
    });
  });
}

// mixed[r][0..d) += sum over j in [first, last) of weights[r][j] * values[j], in the order of j.
template <int R, typename E>
TN_INLINE void mix(const float* const (&weights)[R], const TileKV<E>& kv, const TileKV<E>* next,
                   int64_t first, int64_t last, int64_t d, float* const (&mixed)[R]) {
  constexpr int SPANS = 2;
  int64_t at = 0;
  for (; at + SPANS * SPAN <= d; at += SPANS * SPAN)
    mix_spans<R, SPANS>(weights, kv, next, first, last, d, at, mixed);
  for (; at + SPAN <= d; at += SPAN)
    mix_spans<R, 1>(weights, kv, next, first, last, d, at, mixed);
  if (at == d) return;
  for (int64_t j = first; j < last; j++) {  // a last span that is not whole, filled with zeros
    E filled[SPAN] = {};
    memcpy(filled, kv.values[j / SLOTS] + j % SLOTS * d + at, (d - at) * sizeof(E));
    for (int r = 0; r < R; r++) {
      vf w = splat(weights[r][j]);
      unrolled<2>([&](auto part) TN_INLINE_LAMBDA {
        float* to = mixed[r] + at + part * LANES;
        vf sum = load(to);
        fma_into(sum, w, half_of_span<part>(filled));
        store(to, sum);
      });
    }
  }
}

// What `mix` left, in the order of the elements, multiplied by `factor`.
template <typename E>
TN_INLINE void from_spans(const float* from, int64_t d, float factor, float* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<E, float>) {
    for (; i < d; i++) to[i] = from[i] * factor;
    return;
  }
  for (; i + SPAN <= d; i += SPAN)
    for (int l = 0; l < LANES; l++)
      to[i + 2 * l] = from[i + l] * factor, to[i + 2 * l + 1] = from[i + LANES + l] * factor;
  for (int64_t l = 0; i + l < d; l++) to[i + l] = from[i + l % 2 * LANES + l / 2] * factor;
}

}  // namespace tenora
