// The threads of this library. A job is a number of chunks; whoever is free takes the next one.
//
// The calling thread always works too, and waits for chunks, never for threads: a worker that the
// operating system keeps away delays nothing but the chunk it holds. Workers spin for a moment
// after a job, because the next one of the same step follows within microseconds, then sleep.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "simd.h"

namespace tenora {

typedef void (*ChunkFn)(void* job, int64_t chunk, int thread);

constexpr int64_t SPIN_NS = 100'000;
constexpr int MAX_THREADS = 256;

TN_INLINE void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for what another thread will do within microseconds, unless it is kept off its processor.
template <typename Ready>
TN_INLINE void spin_until(Ready ready) {
  for (int64_t spins = 0; !ready(); spins++) {
    pause_briefly();
    if (spins > 2000) std::this_thread::yield();
  }
}

class Pool {
 public:
  // Sets how many threads work on a job, the caller included. Not while a job runs.
  void set_threads(int wanted) {
    wanted = wanted < 1 ? 1 : wanted > MAX_THREADS ? MAX_THREADS : wanted;
    for (; started_ < wanted - 1; started_++) {
      std::thread(&Pool::work, this, started_ + 1).detach();
    }
    active_.store(wanted, std::memory_order_relaxed);
  }

  int threads() const { return active_.load(std::memory_order_relaxed); }

  // Runs fn(job, chunk, thread) for every chunk; returns when all are done. While another thread's
  // job runs here, the caller works alone.
  void run(int64_t chunks, ChunkFn fn, void* job) {
    if (chunks <= 0) return;
    if (threads() == 1 || chunks == 1 || busy_.test_and_set(std::memory_order_acquire)) {
      for (int64_t chunk = 0; chunk < chunks; chunk++) fn(job, chunk, 0);
      return;
    }
    fn_.store(fn, std::memory_order_relaxed);
    job_.store(job, std::memory_order_relaxed);
    chunks_.store(chunks, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    uint64_t epoch = ((ticket_.load(std::memory_order_relaxed) >> 32) + 1) & 0xffffffffu;
    ticket_.store(epoch << 32 | (uint64_t)chunks, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) wake();
    take_chunks(epoch, 0);
    spin_until([&] { return done_.load(std::memory_order_acquire) >= chunks; });
    busy_.clear(std::memory_order_release);
  }

 private:
  // Claims chunks of job `epoch` until none is left. A claim lowers the number of chunks that are
  // left from a number above zero, so it succeeds only while that job runs, and what was read of
  // the job before the claim still holds after it: the next job is not written until this chunk is
  // done.
  void take_chunks(uint64_t epoch, int thread) {
    for (;;) {
      uint64_t ticket = ticket_.load(std::memory_order_acquire);
      uint64_t left = ticket & 0xffffffffu;
      if (ticket >> 32 != epoch || left == 0) return;
      ChunkFn fn = fn_.load(std::memory_order_relaxed);
      void* job = job_.load(std::memory_order_relaxed);
      int64_t chunk = chunks_.load(std::memory_order_relaxed) - (int64_t)left;
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      fn(job, chunk, thread);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work(int thread) {
    uint64_t seen = 0;
    for (;;) {
      seen = wait_for_job(seen);
      if (thread < threads()) take_chunks(seen, thread);
    }
  }

  uint64_t wait_for_job(uint64_t seen) {
    auto epoch = [this] { return ticket_.load(std::memory_order_acquire) >> 32; };
    auto start = std::chrono::steady_clock::now();
    for (int spins = 1;; spins++) {
      uint64_t now = epoch();
      if (now != seen) return now;
      pause_briefly();
      if (spins % 64) continue;
      auto waited = std::chrono::steady_clock::now() - start;
      if (waited < std::chrono::nanoseconds(SPIN_NS)) continue;
      sleep_until_woken(seen);
      start = std::chrono::steady_clock::now();
    }
  }

  void sleep_until_woken(uint64_t seen) {
    uint32_t signal = signal_.load(std::memory_order_acquire);
    sleeping_.fetch_add(1, std::memory_order_seq_cst);
    if (ticket_.load(std::memory_order_seq_cst) >> 32 == seen) {
#if defined(__linux__)
      syscall(SYS_futex, &signal_, FUTEX_WAIT_PRIVATE, signal, nullptr, nullptr, 0);
#else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
#endif
    }
    sleeping_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void wake() {
    signal_.fetch_add(1, std::memory_order_release);
#if defined(__linux__)
    syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
  }

  alignas(64) std::atomic<uint64_t> ticket_{0};  // job number above, chunks left in the low half
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<ChunkFn> fn_{nullptr};
  std::atomic<void*> job_{nullptr};
  std::atomic<int64_t> chunks_{0};
  alignas(64) std::atomic<uint32_t> signal_{0};
  std::atomic<int> sleeping_{0};
  std::atomic<int> active_{1};
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  int started_ = 0;
};

// Never destroyed: its threads may outlive the destructors of a process that ends.
inline Pool& pool() {
  static Pool* const shared = new Pool;
  return *shared;
}

template <typename Job>
TN_INLINE void run_chunks(int64_t chunks, Job& job) {
  pool().run(
      chunks, [](void* j, int64_t chunk, int thread) { (*(Job*)j)(chunk, thread); }, (void*)&job);
}

}  // namespace tenora
