// All layers of a Llama-shaped decoder over the tokens of one step: what the engine's Python would
// call one after the other, without a thousand small calls between. Same functions, same bits.
#pragma once

#include <vector>

#include "attention.h"
#include "linear.h"
#include "lora.h"
#include "pointwise.h"

namespace tenora {

struct Product {
  const PackedMatrix* weight;
  const float* bias;  // or null
  int64_t rounds;
};

struct DecoderLayer {
  const float *input_norm, *post_attention_norm;
  const float *q_norm, *k_norm;  // [head_dim], or null
  Product qkv, o, gate_up, down;
  KVCache cache;
};

// The active adapters of one layer: tables of modules by adapter, null where none has any.
struct LayerLora {
  const LoraModule* const *qkv, *const *o, *const *gate_up, *const *down;
};

// Rows gathered by adapter, see lora.h; none where a step has no adapters.
struct LoraRows {
  const LoraSegment* segments;
  int64_t num_segments;
  const int32_t* rows;
};

struct DecoderStep {
  float* hidden;  // [tokens, hidden_size], overwritten
  int64_t tokens, hidden_size, intermediate_size;
  const int64_t* logit_rows;  // [num_logit_rows]: the last feed-forward computes only these
  int64_t num_logit_rows;
  float* out;  // [num_logit_rows, hidden_size]
  double norm_eps;
  RopeArgs rope;            // positions, slots, tables and sizes; the rest is set here
  AttentionArgs attention;  // lengths, tables, sizes and rules; the rest is set here
  LoraRows lora, logit_lora;
  const LayerLora* layer_lora;  // [num_layers], or null
};

class Decoder {
 public:
  Decoder(const DecoderStep& step) : s(step) {}

  void run(const DecoderLayer* layers, int64_t num_layers) {
    for (int64_t i = 0; i < num_layers; i++) {
      const LayerLora* lora = s.layer_lora ? s.layer_lora + i : nullptr;
      attend(layers[i], lora);
      if (i + 1 < num_layers) {
        feed_forward(layers[i], lora, s.hidden, s.tokens, s.lora);
      } else {
        for (int64_t r = 0; r < s.num_logit_rows; r++)
          memcpy(s.out + r * s.hidden_size, s.hidden + s.logit_rows[r] * s.hidden_size,
                 s.hidden_size * sizeof(float));
        feed_forward(layers[i], lora, s.out, s.num_logit_rows, s.logit_lora);
      }
    }
  }

 private:
  void attend(const DecoderLayer& layer, const LayerLora* lora) {
    const KVCache& cache = layer.cache;
    int64_t d = cache.head_dim, q_size = s.rope.q_heads * d, kv_size = cache.kv_heads * d;
    int64_t width = q_size + 2 * kv_size;
    float* normed = memory(0, s.tokens * s.hidden_size);
    float* qkv = memory(1, s.tokens * width);
    float* attended = memory(2, s.tokens * q_size);
    rms_norm(s.hidden, s.hidden_size, layer.input_norm, s.norm_eps, normed, s.tokens,
             s.hidden_size);
    multiply(layer.qkv, normed, qkv, s.tokens, false);
    adapt(lora ? lora->qkv : nullptr, s.lora, normed, s.hidden_size, qkv, width);
    if (layer.q_norm && layer.k_norm) {
      for_rows(s.tokens, width, [&](int64_t t) {
        float* q = qkv + t * width;
        for (int64_t h = 0; h < s.rope.q_heads + cache.kv_heads; h++)
          norm_row(q + h * d, h < s.rope.q_heads ? layer.q_norm : layer.k_norm, (float)s.norm_eps,
                   q + h * d, d);
      });
    }
    RopeArgs rope = s.rope;
    rope.q = qkv, rope.k = qkv + q_size, rope.v = qkv + q_size + kv_size;
    rope.q_stride = rope.k_stride = rope.v_stride = width;
    rope.cache = cache;
    rope_write_kv(rope, s.tokens);
    AttentionArgs a = s.attention;
    a.q = qkv, a.q_stride = width, a.out = attended;
    a.cache = cache;
    attention(a);
    multiply(layer.o, attended, s.hidden, s.tokens, true);
    adapt(lora ? lora->o : nullptr, s.lora, attended, q_size, s.hidden, s.hidden_size);
  }

  void feed_forward(const DecoderLayer& layer, const LayerLora* lora, float* hidden, int64_t rows,
                    const LoraRows& by_adapter) {
    int64_t inner = s.intermediate_size;
    float* normed = memory(0, rows * s.hidden_size);
    float* gate_up = memory(3, rows * 2 * inner);
    float* activated = memory(4, rows * inner);
    rms_norm(hidden, s.hidden_size, layer.post_attention_norm, s.norm_eps, normed, rows,
             s.hidden_size);
    multiply(layer.gate_up, normed, gate_up, rows, false);
    adapt(lora ? lora->gate_up : nullptr, by_adapter, normed, s.hidden_size, gate_up, 2 * inner);
    gated(gate_up, activated, rows, inner, [](vf x) { return silu(x); });
    multiply(layer.down, activated, hidden, rows, true);
    adapt(lora ? lora->down : nullptr, by_adapter, activated, inner, hidden, s.hidden_size);
  }

  void multiply(const Product& p, const float* x, float* y, int64_t rows, bool adds) {
    linear(*p.weight, p.bias, x, p.weight->k, y, p.weight->n, rows, adds, p.rounds != 0);
  }

  void adapt(const LoraModule* const* modules, const LoraRows& by_adapter, const float* x,
             int64_t x_stride, float* y, int64_t y_stride) {
    if (modules && by_adapter.num_segments)
      lora_add(x, x_stride, y, y_stride, modules, by_adapter.segments, by_adapter.num_segments,
               by_adapter.rows);
  }

  float* memory(int which, int64_t floats) {
    static thread_local std::vector<float> buffers[5];
    if ((int64_t)buffers[which].size() < floats) buffers[which].resize(floats);
    return buffers[which].data();
  }

  const DecoderStep& s;
};

}  // namespace tenora
