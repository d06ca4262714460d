// The tokens before a row of logits, and the id that a spent thinking budget forces.
#pragma once

#include "edit_arguments.h"
#include "simd.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Prompt, output, and the drafts before the row, read from the newest one backwards.
struct RowTokens {
  int64_t slot = -1;  // of the row's request; -1: none
  const int32_t* history = nullptr;
  int64_t num_prompt = 0, num_tokens = 0;
  const int64_t* drafts = nullptr;
  int64_t num_drafts = 0, num_readable = 0;  // drafts before the row, and those of them that have memory
  int64_t vocab_size = 0;

  static RowTokens of(const EditArguments& a, int64_t row) {
    RowTokens r;
    if (a.tables == nullptr) return r;
    const EditTables& t = *a.tables;
    const DraftArguments& d = a.drafts;
    int64_t request = row;
    if (d.offsets != nullptr) {
      if (row >= d.offsets[d.requests]) return r;
      int64_t end = d.requests;
      for (request = 0; end - request > 1;) {
        const int64_t middle = (request + end) / 2;
        (d.offsets[middle] <= row ? request : end) = middle;
      }
      const int64_t offset = row - d.offsets[request], first = d.width ? request * d.width : d.offsets[request] - request;
      r.num_drafts = offset < d.most ? offset : d.most;
      r.drafts = d.ids + first;
      r.num_readable = d.width && d.width < d.count - first ? d.width : d.count - first;
    }
    const int64_t slot = a.slot[request];
    if (slot < 0 || slot >= t.slots) return r;
    r.slot = slot;
    r.history = t.history + slot * t.max_tokens;
    r.num_prompt = t.num_prompt[slot];
    r.num_tokens = t.num_tokens[slot];
    r.vocab_size = t.size;
    return r;
  }

  int64_t size() const { return num_tokens + num_drafts; }
  int64_t num_output() const { return size() - num_prompt; }
  bool is_output(int64_t back) const { return back < num_output(); }

  // -1 for a placeholder.
  int32_t draft(int64_t number) const {
    return number < num_readable ? id_or_placeholder(drafts[number]) : -1;
  }

  // The id so many tokens before the newest one; -1 for placeholders and before the first token.
  int32_t at(int64_t back) const {
    const int64_t index = size() - 1 - back;
    if (index < 0) return -1;
    return index < num_tokens ? id_or_placeholder(history[index]) : draft(index - num_tokens);
  }

  // Whether `length` ids, in their order, are the tokens that end `back` tokens before the newest one.
  bool has(const int32_t* ids, int64_t length, int64_t back) const {
    for (int64_t i = 0; i < length; ++i) {
      if (at(back + i) != ids[length - 1 - i]) return false;
    }
    return true;
  }

 private:
  int32_t id_or_placeholder(int64_t id) const { return id >= 0 && id < vocab_size ? int32_t(id) : -1; }
};

// The next id of the end for a request that thinks and has spent its budget, else -1. A request thinks while its newest
// start stands behind its newest end.
inline int32_t forced_id(const EditTables& t, const RowTokens& tokens) {
  const int64_t slot = tokens.slot, budget = t.thinking_budget[slot];
  if (budget < 0) return -1;
  const int32_t *start = t.thinking_start + slot * t.max_thinking, *end = t.thinking_end + slot * t.max_thinking;
  const int64_t num_start = t.num_thinking_start[slot], num_end = t.num_thinking_end[slot];
  for (int64_t since_start = 0; since_start < tokens.size(); ++since_start) {
    if (num_end > 0 && tokens.has(end, num_end, since_start)) return -1;
    if (num_start == 0 || !tokens.has(start, num_start, since_start)) continue;
    const int64_t output = tokens.num_output(), spent = since_start < output ? since_start : output;
    if (spent < budget) return -1;
    int64_t begun = num_end - 1 < since_start ? num_end - 1 : since_start;
    while (begun > 0 && !tokens.has(end, begun, 0)) --begun;
    return end[begun];
  }
  return -1;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw
