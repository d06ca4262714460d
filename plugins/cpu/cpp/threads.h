// Shares the rows of a call out among the calling thread and helpers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "workspace.h"

namespace tokendraw {

// Computes one row of a call; `arguments` are those of the call.
using RowFunction = void (*)(const void* arguments, int64_t row, const Scratch& scratch);

// Helper threads that sleep between calls. One thread at a time calls `run`.
class Helpers {
 public:
  ~Helpers();

  // Compute the rows 0 .. rows - 1, each by one of at most `threads` threads, this one included. A helper that has not
  // woken up when the last row is taken is not waited for. Throws std::bad_alloc before any row is computed.
  void run(
      RowFunction function, const void* arguments, int64_t rows, int64_t size, bool has_logprobs, int threads,
      int64_t searched_tokens = 0);

 private:
  // The buffers of a thread.
  struct Place {
    Workspace workspace;
    Scratch scratch = {};
  };

  void start(int helpers);

  // Keep the helpers off the core of the calling thread. Threads of OpenMP spin for milliseconds after an operation of
  // torch, so that no core seems idle, and a helper that wakes up would be put on the caller's and wait for its turn.
  void leave_core_of_caller();

  void work(const Place& place);
  void take_rows(const Place& place);

  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<Place>> places_;  // the first is that of the calling thread
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  RowFunction function_ = nullptr;
  const void* arguments_ = nullptr;
  int64_t rows_ = 0;
  std::atomic<int64_t> next_row_{0};
  int open_ = 0;  // helpers that may still join the call
  int busy_ = 0;  // helpers that have joined it
  bool is_closing_ = false;
  int left_core_ = -1;
};

}  // namespace tokendraw
