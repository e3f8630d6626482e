// The C interface of the library: what `library.py` declares to ctypes, and nothing else.
// Callers have checked shapes; pointers are to contiguous rows of float32 unless named otherwise.

#include "attention.h"
#include "decoder.h"
#include "linear.h"
#include "lora.h"
#include "pointwise.h"
#include "screen.h"

using namespace tenora;

extern "C" {

int64_t tn_interface() { return 8; }

// Whether weights of this kind can be multiplied here.
int64_t tn_has_kind(int64_t kind) {
#if defined(__F16C__)
  if (kind == FLOAT16) return 1;
#endif
  return kind == FLOAT32 || kind == BFLOAT16 || kind == INT8;
}

// The instructions that this build uses: a build for one processor is not the other's arithmetic.
const char* tn_variant() {
#if defined(__AVX512BF16__)
  return "avx512-bf16";
#elif defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "generic";
#endif
}

// Whether the processor multiplies pairs of bfloat16 in one instruction.
int64_t tn_has_bf16_products() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

void tn_set_threads(int64_t threads) { pool().set_threads((int)threads); }

int64_t tn_packed_bytes(int64_t kind, int64_t n, int64_t k) { return packed_bytes(kind, n, k); }

// source [n, k] of the kind's element type; steps [n, groups of k] for INT8.
void tn_pack(int64_t kind, const void* source, const float* steps, int64_t n, int64_t k,
             void* out) {
  PackedMatrix w{kind, n, k, out};
  for_rows(panels_of(n), PANEL * k, [&](int64_t panel) {
    pack_panel(kind, source, steps, n, k, panel, (void*)panel_data(w, panel));
  });
}

void tn_linear(const PackedMatrix* w, const float* bias, const float* x, int64_t x_stride, float* y,
               int64_t y_stride, int64_t rows, int64_t adds, int64_t rounds) {
  LinearJob job = linear_job(*w, bias, x, x_stride, y, y_stride, rows, adds != 0, rounds != 0);
  run_chunks(job.chunks, job);
}

void tn_lora_add(const float* x, int64_t x_stride, float* y, int64_t y_stride,
                 const LoraModule* const* modules, const LoraSegment* segments,
                 int64_t num_segments, const int32_t* rows) {
  AdaptedJob(nullptr, x, x_stride, y, y_stride).run(modules, {segments, num_segments, rows});
}

void tn_attention(const AttentionArgs* args) { attention(*args); }

void tn_rope_write_kv(const RopeArgs* args, int64_t tokens) { rope_write_kv(*args, tokens); }

void tn_rms_norm(const float* x, int64_t x_stride, const float* weight, double eps, float* y,
                 int64_t rows, int64_t h) {
  rms_norm(x, x_stride, weight, eps, y, rows, h);
}

void tn_add_rms_norm(const float* x, const float* residual, const float* weight, double eps,
                     float* sum, float* y, int64_t rows, int64_t h) {
  add_rms_norm(x, residual, weight, eps, sum, y, rows, h);
}

void tn_silu_mul(const float* gate_up, float* y, int64_t rows, int64_t inner) {
  gated(gate_up, y, rows, inner, [](vf x) { return silu(x); });
}

void tn_gelu_tanh_mul(const float* gate_up, float* y, int64_t rows, int64_t inner) {
  gated(gate_up, y, rows, inner, [](vf x) { return gelu_tanh(x); });
}

void tn_greedy(const float* logits, int64_t stride, int64_t rows, int64_t n, int64_t* index,
               uint8_t* is_finite) {
  greedy(logits, stride, rows, n, index, is_finite);
}

// Whether this build finds largest outputs through a screen.
int64_t tn_has_screens() { return HAS_SCREENS; }

int64_t tn_screen_bytes(int64_t n, int64_t k) { return Screen{n, k, nullptr}.bytes(); }

// Arguments as of `tn_pack`. Returns whether `out` is a screen: see `pack_screen`.
int64_t tn_pack_screen(int64_t kind, const void* source, const float* steps, int64_t n, int64_t k,
                       void* out) {
  return pack_screen(Screen{n, k, (const char*)out}, kind, source, steps);
}

void tn_largest_outputs(const LargestArgs* args) { LargestOutputs(*args).run(); }

void tn_decode(const DecoderLayer* layers, int64_t num_layers, const DecoderStep* step) {
  Decoder(*step).run(layers, num_layers);
}

}  // extern "C"
