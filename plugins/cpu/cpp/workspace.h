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

// The buffers as the functions of a row see them.
struct Scratch {
  float* group_max;      // [tiles, 16]: the largest value of each group
  float* tile_max;       // [tiles]
  double* tile_sums[3];  // [tiles] each: of the scales of the survey
  double* tile_weights;  // [tiles]: of the kept tokens
  float* values;         // candidates in the order of their ids
  int32_t* ids;
  float* selected;       // what is left of a search
  Entry* entries;        // candidates of the best tokens
};

class Workspace {
 public:
  // Makes room for rows of `size` logits.
  Scratch reserve(int64_t size, bool has_logprobs);

 private:
  Buffer<float> group_max_, tile_max_, values_, selected_;
  Buffer<double> tile_sums_, tile_weights_;
  Buffer<int32_t> ids_;
  Buffer<Entry> entries_;
};

}  // namespace tokendraw
