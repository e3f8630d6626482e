// Causal attention of a step's queries over a paged KV cache, in float32.
//
// A query row walks the positions it sees in tiles of TILE positions that begin at multiples of
// TILE, with a running maximum and sum (arXiv:1805.02867). What it computes depends on its own
// position and keys alone: the same bits in a decode step, a prefill chunk of any length, or any
// batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace tenora {

constexpr int TILE = 64;
constexpr int MAX_QUERY_ROWS = 48;  // query rows (queries times heads of a KV head) of one item
constexpr int ROWS_AT_ONCE = 3;     // 12 accumulators of four keys each
constexpr float NOTHING = -std::numeric_limits<float>::infinity();  // the score of what is unseen

struct AttentionArgs {
  const float* q;  // [T, q_heads, head_dim], rows q_stride apart
  int64_t q_stride;
  float* out;  // [T, q_heads, head_dim], contiguous
  const float* k_cache;  // [kv_heads, num_blocks, block_size, head_dim]
  const float* v_cache;
  int64_t q_heads, kv_heads, head_dim, num_blocks, block_size;
  int64_t num_sequences;
  const int32_t* query_starts;  // [num_sequences + 1]
  const int32_t* seq_lens;      // [num_sequences], queries included
  const int32_t* blocks;        // the block tables one after the other
  const int32_t* table_starts;  // [num_sequences], where each begins in `blocks`
  double scale, soft_cap;  // soft_cap 0: none
  int64_t window;          // 0: the whole sequence
};

struct AttentionItem {
  int32_t sequence, kv_head, first_query, queries;
};

// Where the keys and values of one tile's positions stand.
struct TileKV {
  const float* keys[TILE];
  const float* values[TILE];
  int64_t count;
};

struct AttentionScratch {
  std::vector<float> scores, mixed;  // [rows, TILE], [rows, head_dim]
  float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS];
  TileKV kv;
};

// The sums of four vectors, [4]: each in the same order.
TN_INLINE void sums_of(const vf (&a)[4], float* out) {
#if defined(__AVX512F__)
  auto half = [](vf v) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)v),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)v), 1)));
  };
  __m256 b0 = half(a[0]), b1 = half(a[1]), b2 = half(a[2]), b3 = half(a[3]);
#elif defined(__AVX2__)
  __m256 b0 = (__m256)a[0], b1 = (__m256)a[1], b2 = (__m256)a[2], b3 = (__m256)a[3];
#endif
#if defined(__AVX2__)
  __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(b0, b1), _mm256_hadd_ps(b2, b3));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  for (int u = 0; u < 4; u++) out[u] = sum_of(a[u]);
#endif
}

// Dot products of R queries with four keys: [R][4]. One order for each, whatever R.
template <int R>
TN_INLINE void dots(const float* const (&q)[R], const float* const* keys, int64_t d,
                    float (&out)[R][4]) {
  vf acc[R][4];
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<4>([&](auto u) TN_INLINE_LAMBDA { acc[r][u] = vf{}; });
  });
  const float *k0 = keys[0], *k1 = keys[1], *k2 = keys[2], *k3 = keys[3];
  int64_t i = 0;
  for (; i + LANES <= d; i += LANES) {
    vf x[R];
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA { x[r] = load(q[r] + i); });
    auto add = [&](auto u, const float* key) TN_INLINE_LAMBDA {
      vf k = load(key + i);
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][u], x[r], k); });
    };
    add(std::integral_constant<int, 0>{}, k0);
    add(std::integral_constant<int, 1>{}, k1);
    add(std::integral_constant<int, 2>{}, k2);
    add(std::integral_constant<int, 3>{}, k3);
  }
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA { sums_of(acc[r], out[r]); });
  for (; i < d; i++)
    for (int r = 0; r < R; r++)
      for (int u = 0; u < 4; u++) out[r][u] += q[r][i] * keys[u][i];
}

// mixed[r][0..d) += sum over j of weights[r][j] * values[j], in the order of j.
template <int R>
TN_INLINE void mix(const float* const (&weights)[R], const float* const* values, int64_t first,
                   int64_t last, int64_t d, float* const (&mixed)[R]) {
  constexpr int NV = R == 1 ? 8 : 4;
  int64_t i = 0;
  for (; i + NV * LANES <= d; i += NV * LANES) {
    vf acc[R][NV];
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto v) TN_INLINE_LAMBDA { acc[r][v] = load(mixed[r] + i + v * LANES); });
    });
    for (int64_t j = first; j < last; j++) {
      const float* value = values[j] + i;
      vf w[R];
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { w[r] = splat(weights[r][j]); });
      unrolled<NV>([&](auto v) TN_INLINE_LAMBDA {
        vf x = load(value + v * LANES);
        unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][v], w[r], x); });
      });
    }
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
      unrolled<NV>([&](auto v) TN_INLINE_LAMBDA { store(mixed[r] + i + v * LANES, acc[r][v]); });
    });
  }
  for (int r = 0; r < R; r++) {
    int64_t at = i;
    for (; at + LANES <= d; at += LANES) {
      vf acc = load(mixed[r] + at);
      for (int64_t j = first; j < last; j++)
        fma_into(acc, splat(weights[r][j]), load(values[j] + at));
      store(mixed[r] + at, acc);
    }
    for (; at < d; at++)
      for (int64_t j = first; j < last; j++) mixed[r][at] += weights[r][j] * values[j][at];
  }
}

struct AttentionJob {
  AttentionArgs a;
  std::vector<AttentionItem> items;

  void operator()(int64_t chunk, int) const {
    static thread_local AttentionScratch s;
    const AttentionItem& item = items[chunk];
    int64_t group = a.q_heads / a.kv_heads, rows = item.queries * group;
    s.scores.resize(rows * TILE);
    s.mixed.assign(rows * a.head_dim, 0.0f);
    for (int64_t r = 0; r < rows; r++)
      s.maximum[r] = NOTHING, s.sum[r] = 0.0f;
    int64_t end = position(item, item.queries - 1) + 1;
    for (int64_t tile = first_position(item, 0) / TILE * TILE; tile < end; tile += TILE) {
      find_rows(item, tile, end, s.kv);
      for (int64_t r = 0; r < rows; r += ROWS_AT_ONCE) {
        int64_t count = std::min<int64_t>(ROWS_AT_ONCE, rows - r);
        count == 3   ? add_tile<3>(item, r, tile, s)
        : count == 2 ? add_tile<2>(item, r, tile, s)
                     : add_tile<1>(item, r, tile, s);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      float* out = row_of(a.out, a.q_heads * a.head_dim, item, r);
      for (int64_t d = 0; d < a.head_dim; d++) out[d] = s.mixed[r * a.head_dim + d] / s.sum[r];
    }
  }

  int64_t position(const AttentionItem& item, int64_t query) const {
    int64_t queries = a.query_starts[item.sequence + 1] - a.query_starts[item.sequence];
    return a.seq_lens[item.sequence] - queries + item.first_query + query;
  }

  int64_t first_position(const AttentionItem& item, int64_t query) const {
    return a.window ? std::max<int64_t>(0, position(item, query) - a.window + 1) : 0;
  }

  template <typename T>
  T* row_of(T* base, int64_t stride, const AttentionItem& item, int64_t r) const {
    int64_t group = a.q_heads / a.kv_heads;
    int64_t token = a.query_starts[item.sequence] + item.first_query + r / group;
    return base + token * stride + (item.kv_head * group + r % group) * a.head_dim;
  }

  // The rows of positions [tile, tile + TILE) below `end`.
  void find_rows(const AttentionItem& item, int64_t tile, int64_t end, TileKV& kv) const {
    const int32_t* table = a.blocks + a.table_starts[item.sequence];
    int64_t index = tile / a.block_size, slot = tile % a.block_size;
    kv.count = std::min<int64_t>(TILE, end - tile);
    for (int64_t j = 0; j < kv.count; index++, slot = 0) {
      int64_t block = item.kv_head * a.num_blocks + table[index];
      int64_t offset = (block * a.block_size + slot) * a.head_dim;
      for (; slot < a.block_size && j < kv.count; slot++, j++, offset += a.head_dim) {
        kv.keys[j] = a.k_cache + offset;
        kv.values[j] = a.v_cache + offset;
      }
    }
  }

  // Adds the tile to rows [row, row + R), which read each key and value once where all see it.
  template <int R>
  void add_tile(const AttentionItem& item, int64_t row, int64_t tile, AttentionScratch& s) const {
    const TileKV& kv = s.kv;
    const float* q[R];
    float *scores[R], *mixed[R];
    const float* weights[R];
    int64_t first[R], last[R], common_first = 0, common_last = TILE;
    for (int r = 0; r < R; r++) {
      int64_t query = (row + r) / (a.q_heads / a.kv_heads);
      q[r] = row_of(a.q, a.q_stride, item, row + r);
      weights[r] = scores[r] = s.scores.data() + (row + r) * TILE;
      mixed[r] = s.mixed.data() + (row + r) * a.head_dim;
      first[r] = std::max<int64_t>(0, first_position(item, query) - tile);
      last[r] = std::max(first[r], std::min<int64_t>(TILE, position(item, query) + 1 - tile));
      common_first = std::max(common_first, first[r]);
      common_last = std::min(common_last, last[r]);
    }
    common_last = std::max(common_first, common_last);
    for (int r = 0; r < R; r++)
      for (int j = 0; j < TILE; j += LANES) store(scores[r] + j, splat(NOTHING));
    // what some rows see and others do not is added to each alone, before and after what all see
    auto score_alone = [&](int r, int64_t from, int64_t to) {
      const float* own_q[1] = {q[r]};
      float* own[1] = {scores[r]};
      score<1>(own_q, kv.keys, from, to, own);
    };
    auto mix_alone = [&](int r, int64_t from, int64_t to) {
      const float* own[1] = {weights[r]};
      float* own_mixed[1] = {mixed[r]};
      mix<1>(own, kv.values, from, to, a.head_dim, own_mixed);
    };
    score<R>(q, kv.keys, common_first, common_last, scores);
    for (int r = 0; r < R; r++) {
      score_alone(r, first[r], std::min(common_first, last[r]));
      score_alone(r, std::max(first[r], common_last), last[r]);
      if (first[r] < last[r]) soften(row + r, scores[r], mixed[r], s);
    }
    for (int r = 0; r < R; r++) mix_alone(r, first[r], std::min(common_first, last[r]));
    mix<R>(weights, kv.values, common_first, common_last, a.head_dim, mixed);
    for (int r = 0; r < R; r++) mix_alone(r, std::max(first[r], common_last), last[r]);
  }

  // A row's scores become weights; its maximum and sum move on, and what it holds is scaled.
  void soften(int64_t row, float* scores, float* mixed, AttentionScratch& s) const {
    vf best = splat(NOTHING);
    for (int j = 0; j < TILE; j += LANES) best = max_of(load(scores + j), best);
    float maximum = std::max(s.maximum[row], max_of_lanes(best));
    // a row whose scores are all -infinity would give NaN: keep its weights zero
    float shift = maximum == NOTHING ? 0.0f : maximum;
    vf total{};
    for (int j = 0; j < TILE; j += LANES) {
      vf weight = exp_of(load(scores + j) - shift);
      store(scores + j, weight);
      total += weight;
    }
    float kept = exp_of(splat(s.maximum[row] - shift))[0];
    if (kept != 1.0f)
      for (int64_t d = 0; d < a.head_dim; d++) mixed[d] *= kept;
    s.sum[row] = s.sum[row] * kept + sum_of(total);
    s.maximum[row] = maximum;
  }

  // Scores of positions [first, last) of the tile.
  template <int R>
  void score(const float* const (&q)[R], const float* const* keys, int64_t first, int64_t last,
             float* const (&scores)[R]) const {
    float found[R][4];
    const float* padded[4];
    for (int64_t j = first; j < last; j += 4) {
      int64_t count = std::min<int64_t>(4, last - j);
      const float* const* these = keys + j;
      if (count < 4) {
        for (int u = 0; u < 4; u++) padded[u] = keys[std::min(j + u, last - 1)];
        these = padded;
      }
      dots<R>(q, these, a.head_dim, found);
      for (int r = 0; r < R; r++)
        for (int u = 0; u < count; u++) scores[r][j + u] = capped(found[r][u] * (float)a.scale);
    }
  }

  float capped(float score) const {
    if (a.soft_cap == 0) return score;
    float cap = (float)a.soft_cap;  // cap * tanh(score / cap)
    return cap - 2.0f * cap / (exp_of(splat(score * (2.0f / cap)))[0] + 1.0f);
  }
};

TN_INLINE void attention(const AttentionArgs& args) {
  static thread_local AttentionJob job;
  job.a = args;
  job.items.clear();
  int64_t group = args.q_heads / args.kv_heads;
  int64_t tile = std::max<int64_t>(1, MAX_QUERY_ROWS / group);
  for (int32_t s = 0; s < args.num_sequences; s++) {
    int64_t queries = args.query_starts[s + 1] - args.query_starts[s];
    // last queries first: they see the most, and the longest work should not come last
    for (int64_t first = (queries - 1) / tile * tile; first >= 0; first -= tile)
      for (int32_t head = 0; head < args.kv_heads; head++)
        job.items.push_back(
            {s, head, (int32_t)first, (int32_t)std::min(tile, queries - first)});
  }
  run_chunks((int64_t)job.items.size(), job);
}

}  // namespace tenora
