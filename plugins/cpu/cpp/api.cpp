// The C interface of the library. tokendraw_cpu/library.py calls it by ctypes and mirrors the structures of arguments.h.
#include <unistd.h>

#include <cstring>
#include <new>

#include "arguments.h"
#include "targets.h"
#include "threads.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace tokendraw {
namespace {

constexpr int32_t kInterfaceVersion = 2;

struct Target {
  const char* name;
  void (*sample_row)(const SampleArguments&, int64_t, const Scratch&);
  void (*sum_moments)(const MomentArguments&, int64_t, const Scratch&);
  void (*edit_row)(const EditArguments&, int64_t, const Scratch&);
  void (*verify_request)(const VerifyArguments&, int64_t, const Scratch&);
  bool is_supported;
};

const Target* targets() {
  static const Target known[] = {
#if defined(__x86_64__) && !defined(TOKENDRAW_ONLY_BASELINE)
      {"avx512", avx512::sample_row_of, avx512::sum_moments_of, avx512::edit_row_of,
       avx512::verify_request_of,
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
           && __builtin_cpu_supports("avx512vl")},
      {"avx2", avx2::sample_row_of, avx2::sum_moments_of, avx2::edit_row_of,
       avx2::verify_request_of,
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")},
#endif
      {"baseline", baseline::sample_row_of, baseline::sum_moments_of, baseline::edit_row_of,
       baseline::verify_request_of, true},
      {nullptr, nullptr, nullptr, nullptr, nullptr, false}};
  return known;
}

// One sampler's threads and buffers, used by one thread at a time.
struct Context {
  const Target* target;
  Helpers* helpers;
  pid_t process;

  // A forked child has none of the helpers, and perhaps a lock that nobody opens: it leaves them and starts anew.
  Helpers& current_helpers() {
    if (process != getpid()) {
      helpers = new Helpers;
      process = getpid();
    }
    return *helpers;
  }
};

template <class Arguments>
struct Call {
  const Arguments* arguments;
  void (*function)(const Arguments&, int64_t, const Scratch&);

  static void compute(const void* call, int64_t row, const Scratch& scratch) {
    const Call& self = *static_cast<const Call*>(call);
    self.function(*self.arguments, row, scratch);
  }
};

template <class Arguments>
int32_t run(
    Context* context, const Arguments& arguments, bool has_logprobs,
    void (*function)(const Arguments&, int64_t, const Scratch&), int64_t searched_tokens = 0) {
  const Call<Arguments> call = {&arguments, function};
  try {
    context->current_helpers().run(
        Call<Arguments>::compute, &call, arguments.logits.rows, arguments.logits.size, has_logprobs, arguments.threads,
        searched_tokens);
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tokendraw

using tokendraw::Context;

EXPORTED int32_t tokendraw_cpu_version() { return tokendraw::kInterfaceVersion; }

// The name of the target of this index that the processor supports, the fastest first; null behind the last.
EXPORTED const char* tokendraw_cpu_target(int32_t index) {
  for (const tokendraw::Target* target = tokendraw::targets(); target->name != nullptr; ++target) {
    if (target->is_supported && index-- == 0) return target->name;
  }
  return nullptr;
}

// A context of a supported target by its name; null without memory.
EXPORTED Context* tokendraw_cpu_open(const char* name) {
  for (const tokendraw::Target* target = tokendraw::targets(); target->name != nullptr; ++target) {
    if (!target->is_supported || strcmp(target->name, name) != 0) continue;
    auto* helpers = new (std::nothrow) tokendraw::Helpers;
    return helpers == nullptr ? nullptr : new (std::nothrow) Context{target, helpers, getpid()};
  }
  return nullptr;
}

EXPORTED void tokendraw_cpu_close(Context* context) {
  if (context->process == getpid()) delete context->helpers;
  delete context;
}

// 0, or 1 without memory.
EXPORTED int32_t tokendraw_cpu_sample(Context* context, const tokendraw::SampleArguments* arguments) {
  return run(context, *arguments, arguments->logprobs.width >= 0, context->target->sample_row);
}

EXPORTED int32_t tokendraw_cpu_moments(Context* context, const tokendraw::MomentArguments* arguments) {
  return run(context, *arguments, false, context->target->sum_moments);
}

EXPORTED int32_t tokendraw_cpu_edit(Context* context, const tokendraw::EditArguments* arguments) {
  return run(context, *arguments, false, context->target->edit_row, arguments->searched_tokens);
}

EXPORTED int32_t tokendraw_cpu_verify(Context* context, const tokendraw::VerifyArguments* arguments) {
  return run(context, *arguments, false, context->target->verify_request);
}
