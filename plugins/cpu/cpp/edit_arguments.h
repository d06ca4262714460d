// The arguments of an edit of logits, as the Python side fills them in (tokendraw_cpu/edit_arguments.py).
#pragma once

#include "arguments.h"

namespace tokendraw {

constexpr int32_t kInPrompt = 1, kHasBias = 2, kOneOutput = 16;  // of counts
constexpr int32_t kOccurs = ~(2 | 4 | 8);

// tokendraw.plugin.RequestTables, each tensor dense, and the numbers of their columns.
struct EditTables {
  int64_t slots, max_tokens, size;  // S, M and V
  int64_t max_bias, max_stop, max_words, max_word, max_breakers, max_thinking;
  const int32_t *history, *num_prompt, *num_tokens, *distinct, *num_distinct, *counts;
  const float *repetition, *frequency, *presence;
  const int32_t* penalty_last_n;
  const int32_t* bias_ids;
  const float* bias;
  const int32_t* num_bias;
  const uint32_t* allowed;
  const uint8_t* is_restricted;
  const int32_t *stop_ids, *num_stop, *min_tokens;
  const int32_t *bad_words, *bad_lens, *num_bad;
  const float *dry_multiplier, *dry_base;
  const int32_t *dry_allowed_length, *dry_max_match, *dry_last_n, *dry_breakers, *num_dry_breakers;
  const int32_t *thinking_budget, *thinking_start, *num_thinking_start, *thinking_end, *num_thinking_end;
};

// The drafts of a verification: request b has the rows from offsets[b] to offsets[b + 1] - 1.
struct DraftArguments {
  const int64_t* offsets;  // null: no drafts
  int64_t requests, most;  // B and K
  const int64_t* ids;
  int64_t count;           // of ids
  int64_t width;           // columns of ids; 0: ids are ragged
};

struct EditArguments {
  Logits logits;             // written to in place
  const EditTables* tables;  // null: no request asks for an edit
  const int64_t* slot;       // of each row, or of each request with drafts
  const uint32_t* bitmask;   // null: none
  int64_t bitmask_stride;    // from row to row, in words
  DraftArguments drafts;
  int64_t searched_tokens;   // most entries that windows and DRY need of a thread's buffers
  int32_t dtype;
  int32_t threads;
};

}  // namespace tokendraw
