// The arguments of a call, as the Python side fills them in. All columns have one entry a row, without gaps.
#pragma once

#include <cstdint>

namespace tokendraw {

enum Dtype : int32_t { kFloat32, kBfloat16, kFloat16 };

enum LogprobsMode : int32_t {
  kRawLogprobs,
  kRawLogits,
  kProcessedLogprobs,
  kProcessedLogits,
  kTemperatureLogprobs,
};

struct Logits {
  const void* data;
  int64_t rows, size;  // B and V
  int64_t stride;      // from row to row, in elements; those of a row lie one behind the other
};

// Null pointers stand for parameters that are off in every row. The values of docs/contract.md, section "Values in
// ready tensors", are those of any columns.
struct Parameters {
  const double *temperature, *top_p, *min_p, *xtc_probability, *xtc_threshold;
  const float* floor;  // in y, of the filters from moments; -inf keeps every token
  const int64_t* top_k;
  const uint8_t *joint, *temperature_last;
};

struct NoiseArguments {
  const int64_t *seed, *position;
  int32_t is_fp64;
  int32_t token_stream, tile_stream;
};

// Columns of N + 1 and of M entries a row.
struct LogprobsArguments {
  int64_t width;          // N, the best tokens; below 0: no log-probabilities
  const int64_t* asked;   // how many of them each row wants, -1: all; null: N
  int64_t* token_ids;
  float* logprobs;
  int64_t* ranks;         // null: none
  float* log_kept_mass;
  int64_t given;          // M
  const int64_t* given_ids;
  int64_t* given_token_ids;
  float* given_logprobs;
  int32_t mode;
};

struct SampleArguments {
  Logits logits;
  Parameters parameters;
  NoiseArguments noise;
  LogprobsArguments logprobs;
  const int64_t* scored_ids;  // tokens whose log-probabilities are wanted; null: those that are drawn
  int64_t* token_ids;
  uint8_t* valid;
  float *threshold, *ceiling;  // null: not wanted
  int32_t dtype;
  int32_t threads;
};

// Sums over the finite logits of each row, as tokendraw.filters.MomentSum; null: not wanted.
struct MomentArguments {
  Logits logits;
  const double* temperature;  // at which the filters look; null: 1
  double *count, *mean, *squares, *mass, *entropy, *collision;
  int32_t dtype;
  int32_t threads;
};

}  // namespace tokendraw
