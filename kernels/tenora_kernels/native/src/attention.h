// Causal attention of a step's queries over a paged KV cache, computed in float32.
//
// A query row walks the positions it sees in tiles of TILE positions that begin at multiples of
// TILE, with a running maximum and sum (arXiv:1805.02867). What it computes depends on its own
// position and keys alone: the same bits in a decode step, a prefill chunk of any length, or any
// batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kv_cache.h"
#include "pool.h"
#include "simd.h"

namespace tenora {

constexpr int TILE = 64;
constexpr int MAX_QUERY_ROWS = 48;  // query rows (queries times heads of a KV head) of one item
constexpr int ROWS_AT_ONCE = 3;     // 12 accumulators of four keys each
constexpr int LINE = 64;            // bytes of a cache line
constexpr int L2_CACHE = 2;         // where a tile is fetched to: the first cache holds its neighbour
constexpr float NOTHING = -std::numeric_limits<float>::infinity();  // the score of what is unseen

struct AttentionArgs {
  const float* q;  // [T, q_heads, head_dim], rows q_stride apart
  int64_t q_stride;
  float* out;  // [T, q_heads, head_dim], contiguous
  KVCache cache;
  int64_t q_heads;
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
template <typename E>
struct TileKV {
  const E* keys[TILE];
  const E* values[TILE];
  int64_t first = 0, count = 0;
};

template <typename E>
struct AttentionScratch {
  std::vector<float> q, scores, mixed;  // [rows, padded head_dim], [rows, TILE], as q
  float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS];
  TileKV<E> now, next;
};

// Elements of a row are read in groups of two vectors. Those of a group of bfloat16 are the even
// and the odd ones, because that is how a register of pairs comes apart; queries and sums stand
// in that order while an item is computed.
constexpr int GROUP = 2 * LANES;

TN_INLINE int64_t padded(int64_t d) { return (d + GROUP - 1) / GROUP * GROUP; }

template <int PART>
TN_INLINE vf half_of_group(const float* p) {
  return load(p + PART * LANES);
}

template <int PART>
TN_INLINE vf half_of_group(const Bf16* p) {
  vu pairs = *(const vu*)p;
  return (vf)(PART == 0 ? pairs << 16 : pairs >> 16 << 16);
}

// A row of d floats in the order in which elements E are read, and back, multiplied by `factor`.
template <typename E>
TN_INLINE void to_groups(const float* from, int64_t d, float* to) {
  if constexpr (std::is_same_v<E, float>) {
    memcpy(to, from, d * sizeof(float));
    return;
  }
  int64_t i = 0;
  for (; i + GROUP <= d; i += GROUP)
    for (int l = 0; l < LANES; l++)
      to[i + l] = from[i + 2 * l], to[i + LANES + l] = from[i + 2 * l + 1];
  for (int64_t l = 0; i + l < d; l++) to[i + l % 2 * LANES + l / 2] = from[i + l];
}

template <typename E>
TN_INLINE void from_groups(const float* from, int64_t d, float factor, float* to) {
  int64_t i = 0;
  if constexpr (std::is_same_v<E, float>) {
    for (; i < d; i++) to[i] = from[i] * factor;
    return;
  }
  for (; i + GROUP <= d; i += GROUP)
    for (int l = 0; l < LANES; l++)
      to[i + 2 * l] = from[i + l] * factor, to[i + 2 * l + 1] = from[i + LANES + l] * factor;
  for (int64_t l = 0; i + l < d; l++) to[i + l] = from[i + l % 2 * LANES + l / 2] * factor;
}

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

// Calls f with each group of a row of d elements; a last one that is not whole is filled with
// zeros.
template <int N, typename E, typename F>
TN_INLINE void for_groups(const E* const* rows, int64_t d, F f) {
  const E* at[N];
  int64_t i = 0;
  for (; i + GROUP <= d; i += GROUP) {
    unrolled<N>([&](auto n) TN_INLINE_LAMBDA { at[n] = rows[n] + i; });
    f(i, at);
  }
  if (i == d) return;
  E filled[N][GROUP] = {};
  for (int n = 0; n < N; n++) {
    memcpy(filled[n], rows[n] + i, (d - i) * sizeof(E));
    at[n] = filled[n];
  }
  f(i, at);
}

// Dot products of R queries with four keys: [R][4]. One order for each, whatever R.
template <int R, typename E>
TN_INLINE void dots(const float* const (&q)[R], const E* const* keys, int64_t d,
                    float (&out)[R][4]) {
  vf acc[R][4];
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<4>([&](auto u) TN_INLINE_LAMBDA { acc[r][u] = vf{}; });
  });
  for_groups<4>(keys, d, [&](int64_t i, const E* const (&key)[4]) TN_INLINE_LAMBDA {
    unrolled<2>([&](auto part) TN_INLINE_LAMBDA {
      vf x[R];
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { x[r] = load(q[r] + i + part * LANES); });
      unrolled<4>([&](auto u) TN_INLINE_LAMBDA {
        vf k = half_of_group<part>(key[u]);
        unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][u], x[r], k); });
      });
    });
  });
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA { sums_of(acc[r], out[r]); });
}

// mixed[r][0..d) += sum over j of weights[r][j] * values[j], in the order of j.
template <int R, int GROUPS, typename E>
TN_INLINE void mix_groups(const float* const (&weights)[R], const E* const* values, int64_t first,
                          int64_t last, int64_t at, float* const (&mixed)[R],
                          const E* const* ahead) {
  vf acc[R][2 * GROUPS];
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<2 * GROUPS>([&](auto v) TN_INLINE_LAMBDA {
      acc[r][v] = load(mixed[r] + at + v * LANES);
    });
  });
  for (int64_t j = first; j < last; j++) {
    const E* value = values[j] + at;
    if (ahead)
      for (int64_t i = 0; i < GROUPS * GROUP; i += (int64_t)(LINE / sizeof(E)))
        __builtin_prefetch(ahead[j] + at + i, 0, L2_CACHE);
    vf w[R];
    unrolled<R>([&](auto r) TN_INLINE_LAMBDA { w[r] = splat(weights[r][j]); });
    unrolled<2 * GROUPS>([&](auto v) TN_INLINE_LAMBDA {
      vf x = half_of_group<v % 2>(value + v / 2 * GROUP);
      unrolled<R>([&](auto r) TN_INLINE_LAMBDA { fma_into(acc[r][v], w[r], x); });
    });
  }
  unrolled<R>([&](auto r) TN_INLINE_LAMBDA {
    unrolled<2 * GROUPS>([&](auto v) TN_INLINE_LAMBDA {
      store(mixed[r] + at + v * LANES, acc[r][v]);
    });
  });
}

template <int R, typename E>
TN_INLINE void mix(const float* const (&weights)[R], const E* const* values, int64_t first,
                   int64_t last, int64_t d, float* const (&mixed)[R], const E* const* ahead) {
  constexpr int GROUPS = R == 1 ? 4 : 2;
  int64_t i = 0;
  for (; i + GROUPS * GROUP <= d; i += GROUPS * GROUP)
    mix_groups<R, GROUPS>(weights, values, first, last, i, mixed, ahead);
  for (; i + GROUP <= d; i += GROUP) mix_groups<R, 1>(weights, values, first, last, i, mixed, ahead);
  if (i == d) return;
  for (int64_t j = first; j < last; j++) {
    E filled[GROUP] = {};
    memcpy(filled, values[j] + i, (d - i) * sizeof(E));
    const E* row[1] = {filled};
    const float* own_weight[R];
    float* own_mixed[R];
    for (int r = 0; r < R; r++) own_weight[r] = weights[r] + j, own_mixed[r] = mixed[r] + i;
    mix_groups<R, 1>(own_weight, row, 0, 1, 0, own_mixed, (const E* const*)nullptr);
  }
}

template <typename E>
struct AttentionJob {
  AttentionArgs a;
  std::vector<AttentionItem> items;
  int64_t per_claim;

  // Items of one claim follow each other in memory: while one tile is computed, the next, of this
  // item or the one behind it, is fetched.
  void operator()(int64_t claim, int) const {
    static thread_local AttentionScratch<E> s;
    int64_t first = claim * per_claim;
    int64_t last = std::min<int64_t>(first + per_claim, items.size());
    find_rows(items[first], first_tile(items[first]), s.next);
    for (int64_t i = first; i < last; i++)
      compute(items[i], i + 1 < last ? &items[i + 1] : nullptr, s);
  }

  void compute(const AttentionItem& item, const AttentionItem* following,
               AttentionScratch<E>& s) const {
    int64_t d = a.cache.head_dim, width = padded(d), rows = item.queries * group();
    s.scores.resize(rows * TILE);
    s.q.assign(rows * width, 0.0f);
    s.mixed.assign(rows * width, 0.0f);
    for (int64_t r = 0; r < rows; r++) {
      const float* from = row_of(a.q, a.q_stride, item, r);
      to_groups<E>(from, d, s.q.data() + r * width);
      s.maximum[r] = NOTHING, s.sum[r] = 0.0f;
    }
    for (int64_t tile = first_tile(item); tile < end_of(item); tile += TILE) {
      std::swap(s.now, s.next);
      if (tile + TILE < end_of(item)) {
        find_rows(item, tile + TILE, s.next);
      } else if (following) {
        find_rows(*following, first_tile(*following), s.next);
      } else {
        s.next = s.now;
      }
      for (int64_t r = 0; r < rows; r += ROWS_AT_ONCE) {
        int64_t count = std::min<int64_t>(ROWS_AT_ONCE, rows - r);
        count == 3   ? add_tile<3>(item, r, tile, s)
        : count == 2 ? add_tile<2>(item, r, tile, s)
                     : add_tile<1>(item, r, tile, s);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      float* out = row_of(a.out, a.q_heads * d, item, r);
      from_groups<E>(s.mixed.data() + r * width, d, 1.0f / s.sum[r], out);
    }
  }

  int64_t group() const { return a.q_heads / a.cache.kv_heads; }

  int64_t position(const AttentionItem& item, int64_t query) const {
    int64_t queries = a.query_starts[item.sequence + 1] - a.query_starts[item.sequence];
    return a.seq_lens[item.sequence] - queries + item.first_query + query;
  }

  int64_t first_position(const AttentionItem& item, int64_t query) const {
    return a.window ? std::max<int64_t>(0, position(item, query) - a.window + 1) : 0;
  }

  int64_t first_tile(const AttentionItem& item) const {
    return first_position(item, 0) / TILE * TILE;
  }

  int64_t end_of(const AttentionItem& item) const { return position(item, item.queries - 1) + 1; }

  template <typename T>
  T* row_of(T* base, int64_t stride, const AttentionItem& item, int64_t r) const {
    int64_t token = a.query_starts[item.sequence] + item.first_query + r / group();
    return base + token * stride + (item.kv_head * group() + r % group()) * a.cache.head_dim;
  }

  // The rows of positions [tile, tile + TILE) that the item sees; the last one again where it
  // sees fewer, so that fetching needs no end.
  void find_rows(const AttentionItem& item, int64_t tile, TileKV<E>& kv) const {
    const KVCache& cache = a.cache;
    const int32_t* table = a.blocks + a.table_starts[item.sequence];
    int64_t index = tile / cache.block_size, slot = tile % cache.block_size;
    kv.count = std::min<int64_t>(TILE, end_of(item) - tile);
    for (int64_t j = 0; j < kv.count; index++, slot = 0) {
      int64_t offset = cache.offset_of(item.kv_head, table[index], slot);
      for (; slot < cache.block_size && j < kv.count; slot++, j++, offset += cache.head_dim) {
        kv.keys[j] = (const E*)cache.keys + offset;
        kv.values[j] = (const E*)cache.values + offset;
      }
    }
    for (int64_t j = kv.count; j < TILE; j++)
      kv.keys[j] = kv.keys[kv.count - 1], kv.values[j] = kv.values[kv.count - 1];
  }

  // Adds the tile to rows [row, row + R), which read each key and value once where all see it.
  template <int R>
  void add_tile(const AttentionItem& item, int64_t row, int64_t tile,
                AttentionScratch<E>& s) const {
    const TileKV<E>& kv = s.now;
    int64_t d = a.cache.head_dim, width = padded(d);
    const float* q[R];
    float *scores[R], *mixed[R];
    const float* weights[R];
    int64_t first[R], last[R], common_first = 0, common_last = TILE;
    for (int r = 0; r < R; r++) {
      int64_t query = (row + r) / group();
      q[r] = s.q.data() + (row + r) * width;
      weights[r] = scores[r] = s.scores.data() + (row + r) * TILE;
      mixed[r] = s.mixed.data() + (row + r) * width;
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
      score<1>(own_q, kv.keys, from, to, own, nullptr);
    };
    auto mix_alone = [&](int r, int64_t from, int64_t to) {
      const float* own[1] = {weights[r]};
      float* own_mixed[1] = {mixed[r]};
      mix<1>(own, kv.values, from, to, d, own_mixed, (const E* const*)nullptr);
    };
    // the rows that come first fetch the next tile between their own keys and values
    bool fetches = row == 0;
    score<R>(q, kv.keys, common_first, common_last, scores, fetches ? s.next.keys : nullptr);
    for (int r = 0; r < R; r++) {
      score_alone(r, first[r], std::min(common_first, last[r]));
      score_alone(r, std::max(first[r], common_last), last[r]);
      if (first[r] < last[r]) soften(row + r, scores[r], mixed[r], s);
    }
    for (int r = 0; r < R; r++) mix_alone(r, first[r], std::min(common_first, last[r]));
    mix<R>(weights, kv.values, common_first, common_last, d, mixed,
           fetches ? s.next.values : nullptr);
    for (int r = 0; r < R; r++) mix_alone(r, std::max(first[r], common_last), last[r]);
  }

  // A row's scores become weights; its maximum and sum move on, and what it holds is scaled.
  void soften(int64_t row, float* scores, float* mixed, AttentionScratch<E>& s) const {
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
      for (int64_t i = 0; i < padded(a.cache.head_dim); i++) mixed[i] *= kept;
    s.sum[row] = s.sum[row] * kept + sum_of(total);
    s.maximum[row] = maximum;
  }

  // Scores of positions [first, last) of the tile.
  template <int R>
  void score(const float* const (&q)[R], const E* const* keys, int64_t first, int64_t last,
             float* const (&scores)[R], const E* const* ahead) const {
    float found[R][4];
    const E* repeated[4];
    for (int64_t j = first; j < last; j += 4) {
      int64_t count = std::min<int64_t>(4, last - j);
      const E* const* these = keys + j;
      if (count < 4) {
        for (int u = 0; u < 4; u++) repeated[u] = keys[std::min(j + u, last - 1)];
        these = repeated;
      }
      if (ahead) {
        for (int u = 0; u < 4; u++)
          for (int64_t at = 0; at < a.cache.head_dim; at += (int64_t)(LINE / sizeof(E)))
            __builtin_prefetch(ahead[j + u] + at, 0, L2_CACHE);
      }
      dots<R>(q, these, a.cache.head_dim, found);
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

template <typename E>
TN_INLINE void attention_over(const AttentionArgs& args) {
  static thread_local AttentionJob<E> job;
  job.a = args;
  job.items.clear();
  int64_t kv_heads = args.cache.kv_heads;
  int64_t tile = std::max<int64_t>(1, MAX_QUERY_ROWS / (args.q_heads / kv_heads));
  for (int32_t s = 0; s < args.num_sequences; s++) {
    int64_t queries = args.query_starts[s + 1] - args.query_starts[s];
    // last queries first: they see the most, and the longest work should not come last
    for (int64_t first = (queries - 1) / tile * tile; first >= 0; first -= tile)
      for (int32_t head = 0; head < kv_heads; head++)
        job.items.push_back(
            {s, head, (int32_t)first, (int32_t)std::min(tile, queries - first)});
  }
  int64_t fair = (int64_t)job.items.size() / (4 * pool().threads());
  job.per_claim = std::max<int64_t>(1, std::min(kv_heads, fair));
  run_chunks(((int64_t)job.items.size() + job.per_claim - 1) / job.per_claim, job);
}

TN_INLINE void attention(const AttentionArgs& args) {
  args.cache.kind == BFLOAT16 ? attention_over<Bf16>(args) : attention_over<float>(args);
}

}  // namespace tenora
