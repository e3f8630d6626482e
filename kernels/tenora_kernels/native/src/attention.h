// Causal attention of a step's queries over a paged KV cache, in float32.
//
// A query row walks the positions it sees in tiles of TILE positions that begin at multiples of
// TILE, with a running maximum and sum (arXiv:1805.02867). What it computes depends on its own
// position and keys alone: the same bits in a decode step, a prefill chunk of any length, or any
// batch.
#pragma once

#include <cmath>
#include <vector>

#include "pool.h"
#include "simd.h"

namespace tenora {

constexpr int TILE = 64;
constexpr int MAX_QUERY_ROWS = 48;  // query rows (queries times heads of a KV head) of one item

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

struct AttentionScratch {
  std::vector<float> scores, mixed;  // [rows, TILE], [rows, head_dim]
  float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS];
  const float* keys[TILE];
  const float* values[TILE];
};

// Four dot products with one q at once: [4] sums over d, in one order.
TN_INLINE void dot4(const float* q, const float* const* keys, int64_t d, float* out) {
  vf a0{}, a1{}, a2{}, a3{};
  int64_t i = 0;
  for (; i + LANES <= d; i += LANES) {
    vf x = load(q + i);
    fma_into(a0, x, load(keys[0] + i));
    fma_into(a1, x, load(keys[1] + i));
    fma_into(a2, x, load(keys[2] + i));
    fma_into(a3, x, load(keys[3] + i));
  }
#if defined(__AVX512F__)
  auto half = [](vf v) {
    return _mm256_add_ps(_mm512_castps512_ps256((__m512)v),
                         _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)v), 1)));
  };
  __m256 b0 = half(a0), b1 = half(a1), b2 = half(a2), b3 = half(a3);
#elif defined(__AVX2__)
  __m256 b0 = (__m256)a0, b1 = (__m256)a1, b2 = (__m256)a2, b3 = (__m256)a3;
#endif
#if defined(__AVX2__)
  __m256 sums = _mm256_hadd_ps(_mm256_hadd_ps(b0, b1), _mm256_hadd_ps(b2, b3));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1)));
#else
  out[0] = sum_of(a0), out[1] = sum_of(a1), out[2] = sum_of(a2), out[3] = sum_of(a3);
#endif
  for (; i < d; i++)
    for (int u = 0; u < 4; u++) out[u] += q[i] * keys[u][i];
}

// mixed[0..d) += sum over j of weights[j] * values[j], in the order of j.
TN_INLINE void mix(const float* weights, const float* const* values, int count, int64_t d,
                   float* mixed) {
  int64_t i = 0;
  for (; i + 8 * LANES <= d; i += 8 * LANES) {
    vf acc[8];
    for (int u = 0; u < 8; u++) acc[u] = load(mixed + i + u * LANES);
    for (int j = 0; j < count; j++) {
      vf w = splat(weights[j]);
      for (int u = 0; u < 8; u++) fma_into(acc[u], w, load(values[j] + i + u * LANES));
    }
    for (int u = 0; u < 8; u++) store(mixed + i + u * LANES, acc[u]);
  }
  for (; i + LANES <= d; i += LANES) {
    vf acc = load(mixed + i);
    for (int j = 0; j < count; j++) fma_into(acc, splat(weights[j]), load(values[j] + i));
    store(mixed + i, acc);
  }
  for (; i < d; i++)
    for (int j = 0; j < count; j++) mixed[i] += weights[j] * values[j][i];
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
      s.maximum[r] = -std::numeric_limits<float>::infinity(), s.sum[r] = 0.0f;
    int64_t begin = first_position(item, 0) / TILE * TILE;
    int64_t end = position(item, item.queries - 1) + 1;
    for (int64_t tile = begin; tile < end; tile += TILE) {
      find_rows(item, tile, std::min<int64_t>(TILE, end - tile), s);
      for (int64_t r = 0; r < rows; r++) add_tile(item, r, tile, s);
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

  void find_rows(const AttentionItem& item, int64_t tile, int64_t count,
                 AttentionScratch& s) const {
    const int32_t* table = a.blocks + a.table_starts[item.sequence];
    int64_t index = tile / a.block_size, slot = tile % a.block_size;
    for (int64_t j = 0; j < count; index++, slot = 0) {
      int64_t block = item.kv_head * a.num_blocks + table[index];
      int64_t offset = (block * a.block_size + slot) * a.head_dim;
      for (; slot < a.block_size && j < count; slot++, j++, offset += a.head_dim) {
        s.keys[j] = a.k_cache + offset;
        s.values[j] = a.v_cache + offset;
      }
    }
  }

  void add_tile(const AttentionItem& item, int64_t r, int64_t tile, AttentionScratch& s) const {
    int64_t query = r / (a.q_heads / a.kv_heads);
    int64_t first = std::max<int64_t>(0, first_position(item, query) - tile);
    int64_t last = std::min<int64_t>(TILE, position(item, query) + 1 - tile);
    if (first >= last) return;
    float* scores = s.scores.data() + r * TILE;
    score(row_of(a.q, a.q_stride, item, r), s.keys, first, last, scores);

    vf best = splat(-std::numeric_limits<float>::infinity());
    for (int j = 0; j < TILE; j += LANES) best = max_of(load(scores + j), best);
    float maximum = std::max(s.maximum[r], max_of_lanes(best));
    // a row whose scores are all -infinity would give NaN: keep its weights zero
    float shift = maximum == -std::numeric_limits<float>::infinity() ? 0.0f : maximum;
    vf total{};
    for (int j = 0; j < TILE; j += LANES) {
      vf weight = exp_of(load(scores + j) - shift);
      store(scores + j, weight);
      total += weight;
    }
    float* mixed = s.mixed.data() + r * a.head_dim;
    float kept = exp_of(splat(s.maximum[r] - shift))[0];
    if (kept != 1.0f)
      for (int64_t d = 0; d < a.head_dim; d++) mixed[d] *= kept;
    s.sum[r] = s.sum[r] * kept + sum_of(total);
    s.maximum[r] = maximum;
    mix(scores + first, s.values + first, (int)(last - first), a.head_dim, mixed);
  }

  // Scores of positions [first, last) of the tile; -infinity elsewhere.
  void score(const float* q, const float* const* keys, int64_t first, int64_t last,
             float* scores) const {
    const vf nothing = splat(-std::numeric_limits<float>::infinity());
    for (int j = 0; j < TILE; j += LANES) store(scores + j, nothing);
    float dots[4];
    const float* padded[4];
    for (int64_t j = first; j < last; j += 4) {
      int64_t count = std::min<int64_t>(4, last - j);
      const float* const* these = keys + j;
      if (count < 4) {
        for (int u = 0; u < 4; u++) padded[u] = keys[std::min(j + u, last - 1)];
        these = padded;
      }
      dot4(q, these, a.head_dim, dots);
      for (int u = 0; u < count; u++) scores[j + u] = dots[u] * (float)a.scale;
    }
    if (a.soft_cap == 0) return;
    float cap = (float)a.soft_cap;
    for (int j = 0; j < TILE; j += LANES) {
      vf s = load(scores + j);  // cap * tanh(s / cap)
      vf capped = cap - 2.0f * cap / (exp_of(s * (2.0f / cap)) + 1.0f);
      store(scores + j, s == nothing ? s : capped);
    }
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
