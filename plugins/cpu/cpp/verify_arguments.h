// The arguments of a verification, as the Python side fills them in (tokendraw_cpu/verification.py).
#pragma once

#include "arguments.h"

namespace tokendraw {

enum VerifyMode : int32_t { kRejection, kCoupled, kBlock };

// What the drafts come with. The rows of the first two are those of all drafts, request after request.
enum DraftKind : int32_t { kDraftProbs, kDraftLogits, kChosenDrafts };

struct VerifyArguments {
  Logits logits;                  // of the target, but `rows` is B: threads share the requests out
  const SampleArguments* target;  // of the L rows; its outputs are filled in for the rows that are drawn
  const int64_t* cu_num_logits;   // [B + 1]
  const int64_t* ids;
  int64_t ids_width;              // K: `ids` is [B, K]; 0: it is [L - B]
  int64_t max_drafts;             // K
  Logits draft;                   // or probabilities, float32 or float64
  const float* draft_floor;       // [L - B] in y, of the filters from moments; null: none
  int64_t* token_ids;             // [B, K + 1]
  int32_t* num_accepted;          // [B]
  uint8_t* valid;                 // [B]
  int32_t mode, draft_kind;
  int32_t draft_dtype;            // of logits, a Dtype; of probabilities 0: float32, 1: float64
  int32_t threads;
};

}  // namespace tokendraw
