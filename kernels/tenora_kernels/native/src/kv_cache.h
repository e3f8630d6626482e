// The paged memory of one layer's keys and values.
#pragma once

#include "simd.h"

namespace tenora {

// Element (head, block, slot, d) stands at block * block_stride + head * head_stride + slot *
// head_dim + d, in elements of `kind`, which is FLOAT32 or BFLOAT16.
struct KVCache {
  void *keys, *values;
  int64_t kind, kv_heads, num_blocks, block_size, head_dim;
  int64_t block_stride, head_stride;

  int64_t offset_of(int64_t head, int64_t block, int64_t slot) const {
    return block * block_stride + head * head_stride + slot * head_dim;
  }
};

// Writes d floats as elements of the cache.
TN_INLINE void store_row(void* to, int64_t kind, int64_t offset, const float* from, int64_t d) {
  if (kind == FLOAT32) {
    memcpy((float*)to + offset, from, d * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < d; i++) ((Bf16*)to)[offset + i].bits = float_to_bf16(from[i]);
}

}  // namespace tenora
