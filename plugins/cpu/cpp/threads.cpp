#include "threads.h"

#include <algorithm>
#include <system_error>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace tokendraw {

Scratch Workspace::reserve(int64_t size, bool has_logprobs, int64_t searched_tokens) {
  const int64_t tiles = (size + kTile - 1) / kTile, room = size + 2 * kGroups;
  double* sums = tile_sums_.reserve(3 * tiles);
  return {
      group_max_.reserve(tiles * kGroups + kGroups),
      tile_max_.reserve(tiles),
      tile_bounds_.reserve(tiles + kGroups),
      {sums, sums + tiles, sums + 2 * tiles},
      tile_weights_.reserve(tiles),
      values_.reserve(room),
      ids_.reserve(room),
      selected_.reserve(room),
      has_logprobs ? entries_.reserve(room) : nullptr,
      tokens_.reserve(searched_tokens),
      matches_.reserve(searched_tokens),
      searched_tokens > 0 ? id_table_.reserve(id_table_size(searched_tokens)) : nullptr};
}

Helpers::~Helpers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::run(
    RowFunction function, const void* arguments, int64_t rows, int64_t size, bool has_logprobs, int threads,
    int64_t searched_tokens) {
  const size_t helpers = size_t(std::max<int64_t>(std::min<int64_t>(threads, rows), 1)) - 1;
  while (places_.size() < helpers + 1) places_.push_back(std::make_unique<Place>());
  for (size_t i = 0; i <= helpers; ++i) {
    places_[i]->scratch = places_[i]->workspace.reserve(size, has_logprobs, searched_tokens);
  }
  function_ = function, arguments_ = arguments, rows_ = rows;
  next_row_.store(0, std::memory_order_relaxed);
  if (helpers == 0) return take_rows(*places_[0]);
  start(int(helpers));
  leave_core_of_caller();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = int(helpers);
  }
  begin_.notify_all();
  take_rows(*places_[0]);
  std::unique_lock<std::mutex> lock(mutex_);
  open_ = 0;
  end_.wait(lock, [this] { return busy_ == 0; });
}

void Helpers::start(int helpers) {
  while (int(threads_.size()) < helpers) {
    const Place& place = *places_[threads_.size() + 1];
    try {
      threads_.emplace_back([this, &place] { work(place); });
      left_core_ = -1;
    } catch (const std::system_error&) {  // the system has no more threads: fewer will do
      return;
    }
  }
}

void Helpers::leave_core_of_caller() {
#ifdef __linux__
  const int core = sched_getcpu();
  if (core < 0 || core == left_core_) return;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) return;
  if (core < CPU_SETSIZE && CPU_COUNT(&cores) > 1) CPU_CLR(core, &cores);
  for (std::thread& thread : threads_) pthread_setaffinity_np(thread.native_handle(), sizeof(cores), &cores);
  left_core_ = core;
#endif
}

void Helpers::work(const Place& place) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    begin_.wait(lock, [this] { return is_closing_ || open_ > 0; });
    if (is_closing_) return;
    --open_;
    ++busy_;
    lock.unlock();
    take_rows(place);
    lock.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

void Helpers::take_rows(const Place& place) {
  for (int64_t row; (row = next_row_.fetch_add(1, std::memory_order_relaxed)) < rows_;) {
    function_(arguments_, row, place.scratch);
  }
}

}  // namespace tokendraw
