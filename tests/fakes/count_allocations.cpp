// Prints how often a first call of the compiled sampler allocates, and how often two later ones of the same shape do.
//
//     count_allocations LIBRARY THREADS
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arguments.h"

static std::atomic<long> allocations{0};

// The library's own allocations come here too: symbols of the program precede those of libc.
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_memalign(size_t, size_t);
extern "C" void* malloc(size_t size) { return ++allocations, __libc_malloc(size); }
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  return ++allocations, __libc_memalign(alignment, size);
}

int main(int, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  const auto open = reinterpret_cast<void* (*)(const char*)>(dlsym(library, "tokendraw_cpu_open"));
  const auto target = reinterpret_cast<const char* (*)(int32_t)>(dlsym(library, "tokendraw_cpu_target"));
  const auto sample =
      reinterpret_cast<int32_t (*)(void*, const tokendraw::SampleArguments*)>(dlsym(library, "tokendraw_cpu_sample"));
  constexpr int64_t kRows = 16, kSize = 20000, kBest = 5;
  std::vector<float> logits(kRows * kSize), logprobs(kRows * (kBest + 1)), kept_mass(kRows);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i * 2654435761u % 1000003) * 1e-5f;
  std::vector<double> temperature(kRows, 0.8), top_p(kRows);
  std::vector<int64_t> top_k(kRows), seed(kRows), position(kRows), tokens(kRows), ranks(kRows);
  std::vector<int64_t> best(kRows * (kBest + 1));
  std::vector<uint8_t> valid(kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    seed[row] = row, top_p[row] = row % 2 ? 0.9 : 1.0, top_k[row] = row % 4 < 2 ? 50 : 0;
  }
  tokendraw::SampleArguments a = {};
  a.logits = {logits.data(), kRows, kSize, kSize};
  a.parameters.temperature = temperature.data(), a.parameters.top_p = top_p.data(), a.parameters.top_k = top_k.data();
  a.noise = {seed.data(), position.data(), 0, 0, 1};
  a.logprobs = {
      kBest, nullptr, best.data(), logprobs.data(), ranks.data(), kept_mass.data(), 0, nullptr, nullptr, nullptr, 0};
  a.token_ids = tokens.data(), a.valid = valid.data(), a.threads = atoi(argv[2]);
  void* context = open(target(0));
  long before = allocations, first = 0;
  for (int call = 0; call < 3; ++call) {
    if (call == 1) first = allocations - before, before = allocations;
    if (sample(context, &a) != 0) return 1;
    a.logprobs.width = -1;  // the later calls also have rows that a draw without log-probabilities takes another way
  }
  const long later = allocations - before;
  printf("%s %ld\n", first > 0 ? "some" : "none", later);
}
