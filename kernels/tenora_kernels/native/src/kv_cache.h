// The paged memory of one layer's keys and values.
#pragma once

#include "simd.h"

namespace tenora {

// Elements are of `kind`, which is FLOAT32 or BFLOAT16. A head's part of a block begins at
// offset_of; in it, element i of a slot's value stands at slot * head_dim + i, and of its key at
// slot * key_slot_stride + i * key_dim_stride. Keys whose slots stand together, element by element
// (key_slot_stride is 1), are read where they stand; others are copied first.
struct KVCache {
  void *keys, *values;
  int64_t kind, kv_heads, num_blocks, block_size, head_dim;
  int64_t block_stride, head_stride, key_slot_stride, key_dim_stride;

  int64_t offset_of(int64_t head, int64_t block) const {
    return block * block_stride + head * head_stride;
  }

  // Where the key and the value of a position begin, of a sequence whose blocks are `table`.
  int64_t key_offset(int64_t head, const int32_t* table, int64_t position) const {
    return offset_of(head, table[position / block_size]) + position % block_size * key_slot_stride;
  }

  int64_t value_offset(int64_t head, const int32_t* table, int64_t position) const {
    return offset_of(head, table[position / block_size]) + position % block_size * head_dim;
  }
};

// Writes d floats as elements of the cache, `stride` elements apart.
TN_INLINE void store_row(void* to, int64_t kind, int64_t offset, int64_t stride, const float* from,
                         int64_t d) {
  if (kind == FLOAT32) {
    for (int64_t i = 0; i < d; i++) ((float*)to)[offset + i * stride] = from[i];
    return;
  }
  for (int64_t i = 0; i < d; i++) ((Bf16*)to)[offset + i * stride].bits = float_to_bf16(from[i]);
}

}  // namespace tenora
