// The sums behind the moments of a row, from which filters of tokendraw.filters compute their floors.
#pragma once

#include "arguments.h"
#include "row.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

// Call visit(x) for every value of a row above -inf, as float64, in tiles: their sums stay small.
template <class T, class Visit>
ALWAYS_INLINE void visit_finite(const Row<T>& row, Visit&& visit) {
  for (int64_t t = 0; t < row.tiles(); ++t) {
    visit_tile(row, t, [&](Floats x, int64_t) INLINED {
      float lane[kLanes];
      store(lane, x);
      for (int i = 0; i < kLanes; ++i) {
        if (lane[i] > -kInf) visit(lane[i]);
      }
    });
  }
}

template <class T>
void sum_moments(const Row<T>& row, int64_t number, const MomentArguments& a, const Scratch& scratch) {
  Survey survey;
  const double temperature = a.temperature == nullptr ? 1.0 : a.temperature[number];
  const Scale scale = Scale::of(temperature > 0 ? temperature : 1.0);
  if (a.mass != nullptr) survey.ask_for(scale);
  look_at_row(row, survey, scratch);
  const double max = double(survey.max);
  if (a.mass != nullptr) a.mass[number] = survey.mass[0];
  if (a.count != nullptr) {
    int64_t count = 0;
    double sum = 0, squares = 0;
    visit_finite(row, [&](float x) INLINED { ++count, sum += double(x) - max; });
    const double mean = sum / double(count > 1 ? count : 1);
    if (a.squares != nullptr) {
      visit_finite(row, [&](float x) INLINED {
        const double distance = double(x) - max - mean;
        squares += distance * distance;
      });
      a.squares[number] = squares;
    }
    a.count[number] = double(count);
    if (a.mean != nullptr) a.mean[number] = mean;
  }
  if (a.entropy != nullptr || a.collision != nullptr) {
    const Weight weight = Weight::of(scale, survey.max);
    double entropy = 0, collision = 0;
    for (int64_t t = 0; t < row.tiles(); ++t) {
      SlotSums terms, squares;
      visit_tile_in_slots(row, t, [&](Floats x, int slot) INLINED {
        const Floats w = weight.of_lanes(x), y = weight.y_of_lanes(x);
        terms.slot[slot] = terms.slot[slot] + where_above(w, splat(0x1p-120f), w * y);
        squares.slot[slot] = squares.slot[slot] + w * w;
      });
      entropy += terms.total();
      collision += squares.total();
    }
    if (a.entropy != nullptr) a.entropy[number] = entropy;
    if (a.collision != nullptr) a.collision[number] = collision;
  }
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw
