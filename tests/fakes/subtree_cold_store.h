// SubtreeColdStore: one directory of a cold store, as a store of its own.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "durable/cold_store.h"

namespace unreft {

class SubtreeColdStore : public durable::ColdStore {
 public:
  // `whole` outlives this.
  SubtreeColdStore(durable::ColdStore& whole, std::string directory)
      : whole_(whole), directory_(std::move(directory)) {}

  absl::StatusOr<std::unique_ptr<durable::ColdFile>> Create(std::string_view name) override {
    return whole_.Create(Within(name));
  }
  absl::Status Put(std::string_view name, std::string_view bytes) override {
    return whole_.Put(Within(name), bytes);
  }
  absl::StatusOr<std::string> Get(std::string_view name, uint64_t bytes_max) override {
    return whole_.Get(Within(name), bytes_max);
  }
  absl::Status Read(std::string_view name, uint64_t offset, std::span<std::byte> into) override {
    return whole_.Read(Within(name), offset, into);
  }
  absl::StatusOr<std::vector<durable::ColdEntry>> List(std::string_view directory) override {
    auto entries = whole_.List(directory.empty() ? directory_ : Within(directory));
    if (!entries.ok()) return entries;
    for (durable::ColdEntry& entry : *entries) entry.name.erase(0, directory_.size() + 1);
    return entries;
  }
  absl::StatusOr<std::string> Anything(std::string_view directory) override {
    return whole_.Anything(directory.empty() ? directory_ : Within(directory));
  }
  absl::Status Remove(std::string_view name) override { return whole_.Remove(Within(name)); }
  absl::StatusOr<uint64_t> RemoveLeftovers(std::string_view directory,
                                           std::chrono::system_clock::time_point before) override {
    return whole_.RemoveLeftovers(directory.empty() ? directory_ : Within(directory), before);
  }
  std::string Describe() const override {
    return fmt::format("{}/{}", whole_.Describe(), directory_);
  }

 private:
  std::string Within(std::string_view name) const { return fmt::format("{}/{}", directory_, name); }

  durable::ColdStore& whole_;
  const std::string directory_;
};

}  // namespace unreft
