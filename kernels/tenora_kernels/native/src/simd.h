// Vectors of the widest registers that the compiler was told of, and the few operations on them
// that plain C++ cannot say. Everything else is arithmetic on `vf`, which compiles anywhere.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tenora {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
constexpr int MAX_TILE_ROWS = 12;  // 24 accumulators, 2 weights, 1 input of 32 registers
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
constexpr int MAX_TILE_ROWS = 6;  // 12 accumulators, 2 weights, 1 input of 16 registers
#else
constexpr int VECTOR_BYTES = 16;
constexpr int MAX_TILE_ROWS = 6;
#endif
constexpr int LANES = VECTOR_BYTES / 4;
constexpr int PANEL = 2 * LANES;  // columns of a packed panel

// How the elements of a weight or a cache are stored.
enum Kind : int64_t { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2, INT8 = 4 };

// may_alias and aligned(4): loads and stores need no alignment
typedef float vf __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
typedef uint32_t vu __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));

#define TN_INLINE static inline __attribute__((always_inline))

#define TN_INLINE_LAMBDA __attribute__((always_inline))

template <typename F, int... I>
TN_INLINE void unrolled_over(std::integer_sequence<int, I...>, F f) {
  (f(std::integral_constant<int, I>{}), ...);
}

// f(0), f(1) ... f(N - 1), each with a constant: arrays that are indexed by it live in registers.
// A loop that the compiler unrolls later leaves them in memory.
template <int N, typename F>
TN_INLINE void unrolled(F f) {
  unrolled_over(std::make_integer_sequence<int, N>{}, f);
}

TN_INLINE vf load(const float* p) { return *(const vf*)p; }
TN_INLINE void store(float* p, vf v) { *(vf*)p = v; }
TN_INLINE vf splat(float x) { return x - vf{}; }

// acc += a * b, rounded once. The compiler may not split or reorder it, and the accumulator stays
// in its register: written as plain arithmetic, GCC copies accumulators and spills them.
TN_INLINE void fma_into(vf& acc, vf a, vf b) {
#if defined(__FMA__)
  vf sum = acc;
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  acc = sum;
#else
  acc += a * b;
#endif
}

// acc += low(x) * low(w) + high(x) * high(w), x and w pairs of bfloat16 in each lane. One
// instruction where the processor has it, which sums in its own order; two steps elsewhere.
TN_INLINE void dot_pairs_into(vf& acc, vu x, vu w) {
#if defined(__AVX512BF16__)
  acc = (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)x, (__m512bh)w);
#else
  fma_into(acc, (vf)(x << 16), (vf)(w << 16));
  fma_into(acc, (vf)((x >> 16) << 16), (vf)((w >> 16) << 16));
#endif
}

// The high bfloat16 of each pair at p. Read again from memory, where a pair that was kept in its
// register would push an accumulator out of one.
TN_INLINE vf high_halves(const vu* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  vu high;
  asm("vpand %1, %2, %0" : "=x"(high) : "m"(*p), "x"(0xffff0000u - vu{}));
  return (vf)high;
#else
  return (vf)((*p >> 16) << 16);
#endif
}

TN_INLINE vf max_of(vf a, vf b) { return a > b ? a : b; }

// The sum of all lanes, halves added to halves: one order whatever the caller.
TN_INLINE float sum_of(vf v) {
  float lanes[LANES];
  store(lanes, v);
  for (int width = LANES / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

TN_INLINE float max_of_lanes(vf v) {
  float lanes[LANES];
  store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < LANES; i++) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// Cephes' expf of x between -87.4 and 88.8 (range reduction by ln 2, degree 6) but for a power of
// two: e^x is what this returns times 2^n.
TN_INLINE vf exp_without_power(vf x, vi& n) {
  const vf magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  vf whole = (x * 1.44269504088896341f + magic) - magic;
  vf r = x - whole * 0.693359375f;
  r = r + whole * 2.12194440e-4f;
  vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  n = __builtin_convertvector(whole, vi);
  return p * r * r + r + 1.0f;
}

// e^x with a relative error below 2 ulp. Below -87.3 it is 0, above 88.7 infinity; NaN stays NaN.
TN_INLINE vf exp_of(vf x) {
  const vf top = splat(88.72284f), bottom = splat(-87.33654f);
  vf clamped = x > top ? top : x;
  clamped = clamped < bottom ? bottom : clamped;
  vi n;
  vf p = exp_without_power(clamped, n);
  // 2^n in two factors: n reaches 128, which one exponent cannot hold
  vi first = n >> 1, second = n - first;
  p = p * (vf)((first + 127) << 23) * (vf)((second + 127) << 23);
  p = x < bottom ? vf{} : p;
  p = x > top ? splat(std::numeric_limits<float>::infinity()) : p;
  return x != x ? x : p;
}

// e^x for x that is at most 0, or NaN: the same bits as `exp_of` with half the work.
TN_INLINE vf exp_below_0(vf x) {
  const vf bottom = splat(-87.33654f);
  vi n;
  vf p = exp_without_power(x < bottom ? bottom : x, n);
  p = p * (vf)((n + 127) << 23);
  return x < bottom ? vf{} : p;
}

// LANES bytes as floats.
TN_INLINE vf load_int8(const char* p) {
#if defined(__AVX512F__)
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
  vi wide;
  for (int lane = 0; lane < LANES; lane++) wide[lane] = ((const int8_t*)p)[lane];
  return __builtin_convertvector(wide, vf);
#endif
}

TN_INLINE float bf16_to_float(uint16_t bits) {
  uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

struct Bf16 {
  uint16_t bits;
};

// To the nearest bfloat16, ties to even; NaN stays NaN.
TN_INLINE uint16_t float_to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tenora
