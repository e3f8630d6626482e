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

#include "attention_tile.h"
#include "pool.h"

namespace tenora {

constexpr int MAX_QUERY_ROWS = 48;  // query rows (queries times heads of a KV head) of one item
constexpr int ROWS_AT_ONCE = 3;
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

template <typename E>
struct AttentionScratch {
  std::vector<float> scores, mixed;  // [rows, TILE], [rows, padded head_dim]
  float maximum[MAX_QUERY_ROWS], sum[MAX_QUERY_ROWS];
  TileKV<E> now, next;
};

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
    find(items[first], first_tile(items[first]), s.next);
    for (int64_t i = first; i < last; i++)
      compute(items[i], i + 1 < last ? &items[i + 1] : nullptr, s);
  }

  void compute(const AttentionItem& item, const AttentionItem* following,
               AttentionScratch<E>& s) const {
    int64_t d = a.cache.head_dim, width = padded(d), rows = item.queries * group();
    s.scores.resize(rows * TILE);
    s.mixed.assign(rows * width, 0.0f);
    for (int64_t r = 0; r < rows; r++) s.maximum[r] = NOTHING, s.sum[r] = 0.0f;
    for (int64_t tile = first_tile(item); tile < end_of(item); tile += TILE) {
      std::swap(s.now, s.next);
      const TileKV<E>* next = &s.next;
      if (tile + TILE < end_of(item)) {
        find(item, tile + TILE, s.next);
      } else if (following) {
        find(*following, first_tile(*following), s.next);
      } else {
        next = nullptr;
      }
      for (int64_t r = 0; r < rows; r += ROWS_AT_ONCE) {
        int64_t count = std::min<int64_t>(ROWS_AT_ONCE, rows - r);
        count == 3   ? add_tile<3>(item, r, tile, next, s)
        : count == 2 ? add_tile<2>(item, r, tile, next, s)
                     : add_tile<1>(item, r, tile, next, s);
      }
    }
    for (int64_t r = 0; r < rows; r++) {
      float* out = row_of(a.out, a.q_heads * d, item, r);
      from_spans<E>(s.mixed.data() + r * width, d, 1.0f / s.sum[r], out);
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

  void find(const AttentionItem& item, int64_t tile, TileKV<E>& kv) const {
    kv.find(a.cache, item.kv_head, a.blocks + a.table_starts[item.sequence], tile,
            std::min<int64_t>(TILE, end_of(item) - tile));
  }

  // Adds the tile to rows [row, row + R), which read each key and value once where all see it.
  template <int R>
  void add_tile(const AttentionItem& item, int64_t row, int64_t tile, const TileKV<E>* next,
                AttentionScratch<E>& s) const {
    const TileKV<E>& kv = s.now;
    int64_t d = a.cache.head_dim, width = padded(d);
    const float *q[R], *weights[R];
    float *scores[R], *mixed[R];
    int64_t first[R], last[R];  // what each row sees of the tile
    int64_t any_first = TILE, any_last = 0, all_first = 0, all_last = TILE;
    for (int r = 0; r < R; r++) {
      int64_t query = (row + r) / group();
      q[r] = row_of(a.q, a.q_stride, item, row + r);
      weights[r] = scores[r] = s.scores.data() + (row + r) * TILE;
      mixed[r] = s.mixed.data() + (row + r) * width;
      first[r] = std::clamp<int64_t>(first_position(item, query) - tile, 0, TILE);
      last[r] = std::max(first[r], std::min<int64_t>(TILE, position(item, query) + 1 - tile));
      any_first = std::min(any_first, first[r]), any_last = std::max(any_last, last[r]);
      all_first = std::max(all_first, first[r]), all_last = std::min(all_last, last[r]);
    }
    if (any_first >= any_last) return;
    all_last = std::max(all_first, all_last);
    if (row > 0) next = nullptr;  // the rows that come first fetch the next tile for all
    score<R>(q, kv, next, any_first, any_last, d, scores);
    for (int r = 0; r < R; r++)
      if (first[r] < last[r]) soften(row + r, first[r], last[r], scores[r], mixed[r], s);
    // what some rows see and others do not is added to each alone, before and after what all see
    auto mix_alone = [&](int r, int64_t from, int64_t to) {
      const float* own[1] = {weights[r]};
      float* own_mixed[1] = {mixed[r]};
      if (from < to) mix<1>(own, kv, (const TileKV<E>*)nullptr, from, to, d, own_mixed);
    };
    for (int r = 0; r < R; r++) mix_alone(r, first[r], std::min(all_first, last[r]));
    mix<R>(weights, kv, next, all_first, all_last, d, mixed);
    for (int r = 0; r < R; r++) mix_alone(r, std::max(first[r], all_last), last[r]);
  }

  // A row's scores of positions [first, last) become weights; its maximum and sum move on, and what
  // it holds is scaled.
  void soften(int64_t row, int64_t first, int64_t last, float* scores, float* mixed,
              AttentionScratch<E>& s) const {
    int64_t begin = first / LANES * LANES;
    vf best = splat(NOTHING);
    for (int64_t j = begin; j < last; j += LANES) {
      vf score = capped(load(scores + j) * (float)a.scale);
      if (j < first || j + LANES > last)
        for (int64_t l = 0; l < LANES; l++)
          if (j + l < first || j + l >= last) score[l] = NOTHING;
      store(scores + j, score);
      best = max_of(score, best);
    }
    float maximum = std::max(s.maximum[row], max_of_lanes(best));
    // a row whose scores are all -infinity would give NaN: keep its weights zero
    float shift = maximum == NOTHING ? 0.0f : maximum;
    vf total{};
    for (int64_t j = begin; j < last; j += LANES) {
      vf weight = exp_below_0(load(scores + j) - shift);
      store(scores + j, weight);
      total += weight;
    }
    float kept = exp_below_0(splat(s.maximum[row] - shift))[0];
    if (kept != 1.0f)
      for (int64_t i = 0; i < padded(a.cache.head_dim); i++) mixed[i] *= kept;
    s.sum[row] = s.sum[row] * kept + sum_of(total);
    s.maximum[row] = maximum;
  }

  vf capped(vf score) const {
    if (a.soft_cap == 0) return score;
    float cap = (float)a.soft_cap;  // cap * tanh(score / cap)
    return cap - 2.0f * cap / (exp_of(score * (2.0f / cap)) + 1.0f);
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
