// What tests write to a ColdStore, and see of it.
#pragma once

#include <absl/status/status.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "durable/cold_store.h"

namespace unreft {

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Of which no block is like another.
inline std::string RandomBytes(size_t count, uint64_t seed = 1) {
  Random random(seed);
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, count - i));
  }
  return bytes;
}

inline absl::Status WriteColdFile(durable::ColdStore& store, std::string_view name,
                                  std::string_view bytes) {
  auto file = store.Create(name);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(AsBytes(bytes)); !status.ok()) return status;
  return (*file)->Finish();
}

inline std::vector<std::string> NamesIn(durable::ColdStore& store,
                                        std::string_view directory = "") {
  const auto entries = store.List(directory);
  EXPECT_TRUE(entries.ok()) << entries.status();
  std::vector<std::string> names;
  if (!entries.ok()) return names;
  for (const durable::ColdEntry& entry : *entries) names.push_back(entry.name);
  return names;
}

}  // namespace unreft
