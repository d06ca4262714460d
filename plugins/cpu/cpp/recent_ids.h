// Ids in the last tokens before a row: how often they occur in the window of the penalties, and their matches in DRY.
#pragma once

#include <cmath>

#include "edit_tokens.h"
#include "workspace.h"

namespace tokendraw {
namespace TOKENDRAW_TARGET {

constexpr int32_t kNoMatch = -1, kBreaker = -2;  // of IdEntry::match

// A hash table of ids.
class IdTable {
 public:
  IdTable() = default;
  // A table in `memory`, see id_table_size().
  IdTable(IdEntry* memory, int64_t ids) : entries_(memory), size_(id_table_size(ids)) {
    for (int64_t i = 0; i < size_; ++i) memory[i].id = -1;
  }

  // Find or add the entry of an id.
  IdEntry& operator[](int32_t id) {
    IdEntry& entry = entries_[place_of(id)];
    if (entry.id < 0) entry = {id, 0, 0, kNoMatch};
    return entry;
  }

  // The entry of an id, an empty one if it has none.
  IdEntry find(int32_t id) const {
    if (size_ == 0) return {id, 0, 0, kNoMatch};
    const IdEntry& entry = entries_[place_of(id)];
    return entry.id < 0 ? IdEntry{id, 0, 0, kNoMatch} : entry;
  }

  // Call visit(entry) for every id that occurs in the window or has a match.
  template <class Visit>
  void visit(Visit&& visit) const {
    for (int64_t i = 0; i < size_; ++i) {
      if (entries_[i].id >= 0 && (entries_[i].in_all > 0 || entries_[i].match >= 0)) visit(entries_[i]);
    }
  }

 private:
  int64_t place_of(int32_t id) const {
    int64_t place = (uint64_t(uint32_t(id)) * 0x9e3779b97f4a7c15u >> 32) & (size_ - 1);
    while (entries_[place].id >= 0 && entries_[place].id != id) place = (place + 1) & (size_ - 1);
    return place;
  }

  IdEntry* entries_ = nullptr;
  int64_t size_ = 0;
};

struct Dry {
  float multiplier, base;
  int64_t allowed_length, max_match, last_n;
  const int32_t* breakers;
  int64_t num_breakers;

  static Dry of(const EditTables& t, int64_t slot) {
    return {t.dry_multiplier[slot], t.dry_base[slot], t.dry_allowed_length[slot], t.dry_max_match[slot],
            t.dry_last_n[slot], t.dry_breakers + slot * t.max_breakers, t.num_dry_breakers[slot]};
  }

  bool is_on() const { return multiplier != 0; }
  float cost(int32_t match) const {
    if (match < 0) return 0;
    return float(double(multiplier) * pow(double(base), double(match - allowed_length)));
  }
};

// Enter the longest match in front of each id. A match in front of a token is as long as the tokens before that one,
// read backwards, equal the newest ones: the Z function of the tokens with the newest one first.
inline void enter_matches(const Dry& dry, const int32_t* tokens, int64_t size, int32_t* match, IdTable& table) {
  for (int64_t i = 0; i < dry.num_breakers; ++i) table[dry.breakers[i]].match = kBreaker;
  int64_t most = size < dry.max_match ? size : dry.max_match;
  for (int64_t i = 0; i < most; ++i) {
    if (tokens[i] < 0 || table.find(tokens[i]).match == kBreaker) most = i;
  }
  // tokens[left] .. tokens[right - 1] equal the newest tokens, with the largest right so far.
  for (int64_t begin = 1, left = 0, right = 0; begin <= size; ++begin) {
    int64_t length = 0;
    if (begin < right) length = match[begin - left] < right - begin ? match[begin - left] : right - begin;
    while (length < most && begin + length < size && tokens[begin + length] == tokens[length]) ++length;
    if (begin + length > right) left = begin, right = begin + length;
    if (begin < size) match[begin] = int32_t(length);
    const int32_t id = tokens[begin - 1];
    if (id < 0 || length < dry.allowed_length) continue;
    IdEntry& entry = table[id];
    if (entry.match != kBreaker && entry.match < length) entry.match = int32_t(length);
  }
}

// Enter the last tokens before a row: of the penalties if `window` is at least 0, and of DRY if it is on.
inline IdTable recent_ids(const RowTokens& tokens, int64_t window, const Dry& dry, const Scratch& s) {
  const int64_t in_window = window < tokens.size() ? window : tokens.size();
  const int64_t searched = !dry.is_on() ? 0 : dry.last_n < tokens.size() ? dry.last_n : tokens.size();
  const int64_t count = searched > in_window ? searched : in_window;
  if (!dry.is_on() && window < 0) return IdTable();
  IdTable table(s.id_table, count + (dry.is_on() ? dry.num_breakers : 0));
  for (int64_t i = 0; i < count; ++i) s.tokens[i] = tokens.at(i);
  if (dry.is_on()) enter_matches(dry, s.tokens, searched, s.matches, table);
  for (int64_t i = 0; i < in_window; ++i) {
    if (s.tokens[i] < 0) continue;
    IdEntry& entry = table[s.tokens[i]];
    entry.in_output += tokens.is_output(i);
    ++entry.in_all;
  }
  return table;
}

}  // namespace TOKENDRAW_TARGET
}  // namespace tokendraw
