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

// Rows that pass through a layer together, so that what is between two products stays in cache.
struct RowBlock {
  int64_t first, count;
  std::vector<LoraSegment> segments;
  std::vector<int32_t> rows;  // counted from `first`

  RowBlock(int64_t first, int64_t count, const LoraRows& all) : first(first), count(count) {
    for (int64_t s = 0; s < all.num_segments; s++) {
      int64_t begin = (int64_t)rows.size();
      for (int64_t i = 0; i < all.segments[s].count; i++) {
        int64_t row = all.rows[all.segments[s].first + i] - first;
        if (row >= 0 && row < count) rows.push_back((int32_t)row);
      }
      int64_t found = (int64_t)rows.size() - begin;
      if (found) segments.push_back({all.segments[s].adapter, begin, found});
    }
  }

  LoraRows by_adapter() const {
    return {segments.data(), (int64_t)segments.size(), rows.data()};
  }
};

constexpr int64_t BLOCK_BYTES = 4 << 20;  // of the widest activation of a block
constexpr int64_t MIN_BLOCK_ROWS = 64;    // each block reads all weights again

class Decoder {
 public:
  Decoder(const DecoderStep& step) : s(step) {}

  void run(const DecoderLayer* layers, int64_t num_layers) {
    std::vector<RowBlock> blocks = row_blocks(s.tokens, s.lora);
    std::vector<RowBlock> logit_blocks = row_blocks(s.num_logit_rows, s.logit_lora);
    for (int64_t i = 0; i < num_layers; i++) {
      const LayerLora* lora = s.layer_lora ? s.layer_lora + i : nullptr;
      bool is_last = i + 1 == num_layers;
      attend(layers[i], lora, blocks);
      for (const RowBlock& block : blocks) {
        add_attended(layers[i], lora, block);
        if (!is_last) feed_forward(layers[i], lora, s.hidden, block);
      }
      if (!is_last) continue;
      for (int64_t r = 0; r < s.num_logit_rows; r++)
        memcpy(s.out + r * s.hidden_size, s.hidden + s.logit_rows[r] * s.hidden_size,
               s.hidden_size * sizeof(float));
      for (const RowBlock& block : logit_blocks) feed_forward(layers[i], lora, s.out, block);
    }
  }

 private:
  std::vector<RowBlock> row_blocks(int64_t rows, const LoraRows& lora) const {
    int64_t fitting = BLOCK_BYTES / (2 * s.intermediate_size * (int64_t)sizeof(float));
    int64_t per_block = even_part(rows, std::max(fitting, MIN_BLOCK_ROWS));
    std::vector<RowBlock> blocks;
    for (int64_t first = 0; first < rows; first += per_block)
      blocks.emplace_back(first, std::min(per_block, rows - first), lora);
    return blocks;
  }

  // Queries, keys and values of all rows, then attention over them.
  void attend(const DecoderLayer& layer, const LayerLora* lora,
              const std::vector<RowBlock>& blocks) {
    const KVCache& cache = layer.cache;
    int64_t d = cache.head_dim, q_size = s.rope.q_heads * d, kv_size = cache.kv_heads * d;
    int64_t width = q_size + 2 * kv_size;
    float* all = memory(1, s.tokens * width);
    for (const RowBlock& block : blocks) {
      float* normed = memory(0, block.count * s.hidden_size);
      float* qkv = all + block.first * width;
      rms_norm(s.hidden + block.first * s.hidden_size, s.hidden_size, layer.input_norm, s.norm_eps,
               normed, block.count, s.hidden_size);
      multiply(layer.qkv, lora ? lora->qkv : nullptr, normed, qkv, block, false);
      if (layer.q_norm && layer.k_norm) {
        for_rows(block.count, width, [&](int64_t t) {
          float* q = qkv + t * width;
          for (int64_t h = 0; h < s.rope.q_heads + cache.kv_heads; h++)
            norm_row(q + h * d, h < s.rope.q_heads ? layer.q_norm : layer.k_norm,
                     (float)s.norm_eps, q + h * d, d);
        });
      }
      RopeArgs rope = s.rope;
      rope.q = qkv, rope.k = qkv + q_size, rope.v = qkv + q_size + kv_size;
      rope.q_stride = rope.k_stride = rope.v_stride = width;
      rope.positions += block.first, rope.slots += block.first;
      rope.cache = cache;
      rope_write_kv(rope, block.count);
    }
    AttentionArgs a = s.attention;
    a.q = all, a.q_stride = width, a.out = memory(2, s.tokens * q_size);
    a.cache = cache;
    attention(a);
  }

  // hidden += what `attend` left, times o.
  void add_attended(const DecoderLayer& layer, const LayerLora* lora, const RowBlock& block) {
    int64_t q_size = s.rope.q_heads * layer.cache.head_dim;
    const float* attended = memory(2, s.tokens * q_size) + block.first * q_size;
    multiply(layer.o, lora ? lora->o : nullptr, attended,
             s.hidden + block.first * s.hidden_size, block, true);
  }

  void feed_forward(const DecoderLayer& layer, const LayerLora* lora, float* all_hidden,
                    const RowBlock& block) {
    int64_t inner = s.intermediate_size, rows = block.count;
    float* hidden = all_hidden + block.first * s.hidden_size;
    float* normed = memory(0, rows * s.hidden_size);
    float* gate_up = memory(3, rows * 2 * inner);
    float* activated = memory(4, rows * inner);
    rms_norm(hidden, s.hidden_size, layer.post_attention_norm, s.norm_eps, normed, rows,
             s.hidden_size);
    multiply(layer.gate_up, lora ? lora->gate_up : nullptr, normed, gate_up, block, false);
    gated(gate_up, activated, rows, inner, [](vf x) { return silu(x); });
    multiply(layer.down, lora ? lora->down : nullptr, activated, hidden, block, true);
  }

  void multiply(const Product& p, const LoraModule* const* modules, const float* x, float* y,
                const RowBlock& block, bool adds) {
    const PackedMatrix& w = *p.weight;
    LinearJob job = linear_job(w, p.bias, x, w.k, y, w.n, block.count, adds, p.rounds != 0);
    if (modules && !block.segments.empty()) {
      AdaptedJob(&job, x, w.k, y, w.n).run(modules, block.by_adapter());
    } else {
      run_chunks(job.chunks, job);
    }
  }

  // Begins a cache line, so that the columns of a panel are whole lines.
  float* memory(int which, int64_t floats) {
    static thread_local std::vector<float> buffers[5];
    constexpr int64_t LINE_FLOATS = LINE / sizeof(float);
    std::vector<float>& buffer = buffers[which];
    if ((int64_t)buffer.size() < floats + LINE_FLOATS) buffer.resize(floats + LINE_FLOATS);
    return (float*)(((uintptr_t)buffer.data() + LINE - 1) / LINE * LINE);
  }

  const DecoderStep& s;
};

}  // namespace tenora
