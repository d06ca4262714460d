// Edits of a row of logits in place: masks, then biases, penalties and DRY of the ids that have some.
#pragma once

#include "recent_ids.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// ---- float32 as logits of each dtype, to the nearest, on a tie to the even one. No NaN.

template <class T>
T rounded(float x);
template <>
inline float rounded<float>(float x) { return x; }
template <>
inline Bfloat16 rounded<Bfloat16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  return {uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16)};
}
template <>
inline Float16 rounded<Float16>(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  uint32_t half = 0x7c00;
  if (magnitude < 0x38800000u) {  // below 2 ** -14: multiples of 2 ** -24, as are the floats from 1/2 on
    half = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else if (magnitude < 0x47800000u) {
    half = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  }
  return {uint16_t((bits >> 16 & 0x8000u) | half)};
}

// ---- Masks

// Write -inf where the bit of an id is not set: bit i % 32 of word i / 32.
template <class T>
void keep_bits(T* x, int64_t size, const uint32_t* words) {
  const T off = negative_infinity<T>();
  T block[32];  // the compiler copies it in vectors
  for (T& value : block) value = off;
  for (int64_t first = 0; first < size; first += 32) {
    const int64_t left = size - first < 32 ? size - first : 32;
    uint32_t forbidden = ~words[first / 32] & uint32_t((uint64_t(1) << left) - 1);
    if (forbidden == 0xffffffffu) {
      memcpy(x + first, block, sizeof block);
      continue;
    }
    for (; forbidden; forbidden &= forbidden - 1) x[first + __builtin_ctz(forbidden)] = off;
  }
}

template <class T>
void keep_id(T* x, int64_t size, int32_t id) {
  const T kept = x[id];
  for (int64_t i = 0; i < size; ++i) x[i] = negative_infinity<T>();
  x[id] = kept;
}

// Forbid ids that are not allowed, the last ids of bad words, and stop ids before min_tokens.
template <class T>
void mask_row(T* x, const EditTables& t, const RowTokens& tokens) {
  const int64_t slot = tokens.slot;
  if (t.is_restricted[slot]) keep_bits(x, t.size, t.allowed + slot * ((t.size + 31) / 32));
  for (int64_t word = slot * t.max_words, end = word + t.num_bad[slot]; word < end; ++word) {
    const int64_t before = t.bad_lens[word] - 1;
    const int32_t* last = t.bad_words + (word + 1) * t.max_word - 1;
    if (before <= tokens.num_output() && tokens.has(last - before, before, 0)) x[*last] = negative_infinity<T>();
  }
  if (tokens.num_output() < t.min_tokens[slot]) {
    const int32_t* ids = t.stop_ids + slot * t.max_stop;
    for (int64_t i = 0; i < t.num_stop[slot]; ++i) x[ids[i]] = negative_infinity<T>();
  }
}

// ---- Biases, penalties and DRY. Each step is rounded to float32; the result to the dtype of the logits, once.

template <class T>
class IdEdits {
 public:
  IdEdits(T* x, const EditTables& t, const RowTokens& tokens, const Scratch& s)
      : x_(x),
        tables_(t),
        tokens_(tokens),
        counts_(t.counts + tokens.slot * t.size),
        repetition_(t.repetition[tokens.slot]),
        frequency_(t.frequency[tokens.slot]),
        presence_(t.presence[tokens.slot]),
        window_(t.penalty_last_n[tokens.slot]),
        dry_(Dry::of(t, tokens.slot)),
        recent_(recent_ids(tokens, window_, dry_, s)) {}

  void apply() const {
    const bool has_penalty = repetition_ != 1 || frequency_ != 0 || presence_ != 0;
    if (has_penalty && window_ < 0) {
      edit_all_occurring();
    } else if (has_penalty || dry_.is_on()) {
      recent_.visit([&](const IdEntry& entry) {
        if (!(counts_[entry.id] & kHasBias)) write(entry.id, to_float(x_[entry.id]), entry);
      });
    }
    const int64_t first = tokens_.slot * tables_.max_bias;
    for (int64_t i = first; i < first + tables_.num_bias[tokens_.slot]; ++i) {
      const int32_t id = tables_.bias_ids[i];
      write(id, to_float(x_[id]) + tables_.bias[i], recent_.find(id));
    }
  }

 private:
  // Ids of prompt, output and drafts. Those with a bias are edited with it.
  void edit_all_occurring() const {
    const int32_t* distinct = tables_.distinct + tokens_.slot * tables_.max_tokens;
    const int64_t count = tables_.num_distinct[tokens_.slot];
    for (int64_t i = 0; i < count; ++i) {
      if (i + kAhead < count) {
        __builtin_prefetch(counts_ + distinct[i + kAhead]);
        __builtin_prefetch(x_ + distinct[i + kAhead], 1);
      }
      const int32_t id = distinct[i];
      if (!(counts_[id] & kHasBias)) write(id, to_float(x_[id]), recent_.find(id));
    }
    for (int64_t i = 0; i < tokens_.num_drafts; ++i) {
      const int32_t id = tokens_.draft(i);
      if (id >= 0 && !(counts_[id] & (kOccurs | kHasBias)) && drafts_before(i, id) == 0) {
        write(id, to_float(x_[id]), recent_.find(id));
      }
    }
  }

  int32_t drafts_before(int64_t end, int32_t id) const {
    int32_t found = 0;
    for (int64_t i = 0; i < end; ++i) found += tokens_.draft(i) == id;
    return found;
  }

  ALWAYS_INLINE void write(int32_t id, float value, IdEntry recent) const {
    int32_t times = recent.in_output;
    bool occurs = recent.in_all > 0;
    if (window_ < 0) {
      times = counts_[id] / kOneOutput + drafts_before(tokens_.num_drafts, id);
      occurs = times > 0 || (counts_[id] & kInPrompt);
    }
    const float factor = occurs ? repetition_ : 1.0f;
    value = value > 0 ? value / factor : value * factor;
    const float reduced = value - frequency_ * float(times) - presence_;
    value = times > 0 ? reduced : value;  // an id of the prompt keeps the sign of its zero
    value = value - dry_.cost(recent.match);
    if (value == value) x_[id] = rounded<T>(value);
  }

  static constexpr int64_t kAhead = 16;  // ids whose count and logit are fetched in advance

  T* x_;
  const EditTables& tables_;
  const RowTokens& tokens_;
  const int32_t* counts_;
  float repetition_, frequency_, presence_;
  int64_t window_;  // of the penalties; -1: all tokens
  Dry dry_;
  IdTable recent_;
};

template <class T>
void edit_row(const EditArguments& a, int64_t number, const Scratch& s) {
  T* x = static_cast<T*>(const_cast<void*>(a.logits.data)) + number * a.logits.stride;
  const RowTokens tokens = RowTokens::of(a, number);
  const int32_t forced = tokens.slot < 0 ? -1 : forced_id(*a.tables, tokens);
  if (forced >= 0) {
    keep_id(x, a.logits.size, forced);
  } else {
    if (a.bitmask != nullptr) keep_bits(x, a.logits.size, a.bitmask + number * a.bitmask_stride);
    if (tokens.slot >= 0) mask_row(x, *a.tables, tokens);
  }
  if (tokens.slot >= 0) IdEdits<T>(x, *a.tables, tokens, s).apply();
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw
