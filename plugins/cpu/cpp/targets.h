// The instruction sets that the kernels are compiled for. kernel.cpp is compiled for each with TOKENDRAW_TARGET as its
// name; api.cpp chooses one when the library is loaded.
#pragma once

#include "arguments.h"
#include "edit_arguments.h"
#include "verify_arguments.h"
#include "workspace.h"

namespace tokendraw {

#define TOKENDRAW_DECLARE(target)                                               \
  namespace target {                                                            \
  void sample_row_of(const SampleArguments& a, int64_t number, const Scratch& s); \
  void sum_moments_of(const MomentArguments& a, int64_t number, const Scratch& s); \
  void edit_row_of(const EditArguments& a, int64_t number, const Scratch& s);     \
  void verify_request_of(const VerifyArguments& a, int64_t number, const Scratch& s); \
  }

#if defined(__x86_64__) && !defined(TOKENDRAW_ONLY_BASELINE)
TOKENDRAW_DECLARE(avx512)
TOKENDRAW_DECLARE(avx2)
#endif
TOKENDRAW_DECLARE(baseline)

#undef TOKENDRAW_DECLARE

}  // namespace tokendraw
