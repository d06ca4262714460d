// Buffers of a thread. They grow with the vocabulary and are kept for the next row and the next call.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace tokendraw {

constexpr int64_t kTile = 1024;  // consecutive ids that share one noise variate
constexpr int64_t kGroups = 16;  // of a tile, whose maxima are known: ids of the same remainder by 16

// Uninitialised memory. Contents are lost where it grows.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(data_); }

  T* reserve(int64_t size) {
    if (size > size_) {
      free(data_);
      size_ = 0;
      const size_t bytes = (size_t(size) * sizeof(T) + 63) / 64 * 64;
      data_ = static_cast<T*>(aligned_alloc(64, bytes));
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = size;
    }
    return data_;
  }
  T* data() { return data_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// A value and its id, of the sorted lists of log-probabilities.
struct Entry {
  float value;
  int32_t id;
};

// An id among the last tokens before a row.
struct IdEntry {
  int32_t id;                 // -1: none
  int32_t in_output, in_all;  // occurrences in the window of the penalties: those of the output, and all
  int32_t match;              // length of the longest match in front of it, -1: none
};

// Entries of a hash table of so many ids: a power of two, at most three quarters of it full.
inline int64_t id_table_size(int64_t ids) {
  int64_t size = 16;
  while (3 * size < 4 * ids) size *= 2;
  return size;
}

// The buffers as the functions of a row see them.
struct Scratch {
  float* group_max;      // [tiles, 16]: the largest value of each group
  float* tile_max;       // [tiles]
  float* tile_bounds;    // [tiles, to a multiple of 16]: of the weight of a tile, then of its place in the draw
  double* tile_sums[3];  // [tiles] each: of the scales of the survey
  double* tile_weights;  // [tiles]: of the kept tokens
  float* values;         // candidates in the order of their ids
  int32_t* ids;
  float* selected;       // what is left of a search
  Entry* entries;        // candidates of the best tokens
  int32_t* tokens;       // the last tokens before a row, the newest one first
  int32_t* matches;      // in front of each of them
  IdEntry* id_table;
};

class Workspace {
 public:
  // Makes room for rows of `size` logits, and for edits that search among so many tokens.
  Scratch reserve(int64_t size, bool has_logprobs, int64_t searched_tokens);

 private:
  Buffer<float> group_max_, tile_max_, tile_bounds_, values_, selected_;
  Buffer<double> tile_sums_, tile_weights_;
  Buffer<int32_t> ids_, tokens_, matches_;
  Buffer<Entry> entries_;
  Buffer<IdEntry> id_table_;
};

}  // namespace tokendraw
