// The small operations between products: norms, rotary positions, gated activations, choices.
#pragma once

#include <cmath>
#include <vector>

#include "kv_cache.h"
#include "pool.h"
#include "simd.h"

namespace tenora {

constexpr int64_t ELEMENTS_PER_CLAIM = 32 * 1024;  // fewer are not worth a second thread

// Runs row(i) for every row, in claims of some rows.
template <typename Row>
TN_INLINE void for_rows(int64_t rows, int64_t width, Row row) {
  int64_t per_claim = std::max<int64_t>(1, ELEMENTS_PER_CLAIM / std::max<int64_t>(1, width));
  auto job = [&](int64_t chunk, int) {
    int64_t last = std::min(rows, (chunk + 1) * per_claim);
    for (int64_t i = chunk * per_claim; i < last; i++) row(i);
  };
  run_chunks((rows + per_claim - 1) / per_claim, job);
}

TN_INLINE void norm_row(const float* x, const float* weight, float eps, float* y, int64_t h) {
  vf a{}, b{};
  int64_t i = 0;
  for (; i + 2 * LANES <= h; i += 2 * LANES) {
    vf u = load(x + i), v = load(x + i + LANES);
    fma_into(a, u, u);
    fma_into(b, v, v);
  }
  float square = sum_of(a + b);
  for (; i < h; i++) square += x[i] * x[i];
  float factor = 1.0f / std::sqrt(square / (float)h + eps);
  for (i = 0; i + LANES <= h; i += LANES)
    store(y + i, load(weight + i) * (load(x + i) * factor));
  for (; i < h; i++) y[i] = weight[i] * (x[i] * factor);
}

TN_INLINE void rms_norm(const float* x, int64_t x_stride, const float* weight, double eps, float* y,
                        int64_t rows, int64_t h) {
  for_rows(rows, h,
           [=](int64_t i) { norm_row(x + i * x_stride, weight, (float)eps, y + i * h, h); });
}

TN_INLINE void add_rms_norm(const float* x, const float* residual, const float* weight, double eps,
                            float* sum, float* y, int64_t rows, int64_t h) {
  for_rows(rows, h, [=](int64_t i) {
    for (int64_t d = 0; d < h; d++) sum[i * h + d] = x[i * h + d] + residual[i * h + d];
    norm_row(sum + i * h, weight, (float)eps, y + i * h, h);
  });
}

TN_INLINE void rotate_head(const float* x, const float* cos, const float* sin, float* y,
                           int64_t head_dim) {
  int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float first = x[i], second = x[i + half];
    y[i] = first * cos[i] - second * sin[i];
    y[i + half] = second * cos[i + half] + first * sin[i + half];
  }
}

struct RopeArgs {
  float *q, *k;  // [T, heads, head_dim], each token's heads contiguous; q is rotated in place
  const float* v;
  int64_t q_stride, k_stride, v_stride;
  int64_t q_heads;
  const float *cos, *sin;  // [positions, head_dim]
  const int64_t *positions, *slots;  // a slot is block * block_size + its place in the block
  KVCache cache;
};

TN_INLINE void rope_write_kv(const RopeArgs& a, int64_t tokens) {
  const KVCache& cache = a.cache;
  int64_t d = cache.head_dim;
  for_rows(tokens, (a.q_heads + 2 * cache.kv_heads) * d, [&](int64_t t) {
    static thread_local std::vector<float> rotated;
    if ((int64_t)rotated.size() < d) rotated.resize(d);
    const float *cos = a.cos + a.positions[t] * d, *sin = a.sin + a.positions[t] * d;
    for (int64_t h = 0; h < a.q_heads; h++) {
      float* q = a.q + t * a.q_stride + h * d;
      rotate_head(q, cos, sin, q, d);
    }
    int64_t block = a.slots[t] / cache.block_size, slot = a.slots[t] % cache.block_size;
    for (int64_t h = 0; h < cache.kv_heads; h++) {
      int64_t offset = cache.offset_of(h, block);
      rotate_head(a.k + t * a.k_stride + h * d, cos, sin, rotated.data(), d);
      store_row(cache.keys, cache.kind, offset + slot * cache.key_slot_stride, cache.key_dim_stride,
                rotated.data(), d);
      store_row(cache.values, cache.kind, offset + slot * d, 1, a.v + t * a.v_stride + h * d, d);
    }
  });
}

TN_INLINE vf silu(vf x) { return x / (1.0f + exp_of(-x)); }

// 0.5 x (1 + tanh(u)) is x times the logistic function of 2 u
TN_INLINE vf gelu_tanh(vf x) {
  vf u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x / (1.0f + exp_of(-2.0f * u));
}

template <typename Activation>
TN_INLINE void gated(const float* gate_up, float* y, int64_t rows, int64_t inner, Activation act) {
  for_rows(rows, 4 * inner, [=](int64_t r) {
    const float *gate = gate_up + r * 2 * inner, *up = gate + inner;
    float* out = y + r * inner;
    int64_t i = 0;
    for (; i + LANES <= inner; i += LANES) store(out + i, act(load(gate + i)) * load(up + i));
    for (; i < inner; i++) out[i] = act(splat(gate[i]))[0] * up[i];
  });
}

// The lowest index of the largest element, and whether all elements are finite.
TN_INLINE void choose_row(const float* x, int64_t n, int64_t* index, uint8_t* is_finite) {
  float best = x[0];
  vf largest = splat(x[0]), doubt{};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    vf v = load(x + i);
    largest = max_of(v, largest);
    doubt += v - v;  // NaN where v is not finite
  }
  float residue = sum_of(doubt);
  best = max_of_lanes(largest);
  for (; i < n; i++) best = x[i] > best ? x[i] : best, residue += x[i] - x[i];
  *is_finite = residue == 0.0f;
  int64_t at = 0;
  while (at + LANES <= n) {
    vi found = load(x + at) == best;
    bool any = false;
    for (int l = 0; l < LANES; l++) any |= found[l] != 0;
    if (any) break;
    at += LANES;
  }
  while (at < n && x[at] != best) at++;
  *index = at < n ? at : 0;
}

TN_INLINE void greedy(const float* logits, int64_t stride, int64_t rows, int64_t n, int64_t* index,
                      uint8_t* is_finite) {
  for_rows(rows, n, [=](int64_t i) {
    choose_row(logits + i * stride, n, index + i, is_finite + i);
  });
}

}  // namespace tenora
