#include "smp/protect/remaking.h"

#include <fmt/format.h>

#include <utility>

#include "base/format.h"

namespace unreft::smp {

void Remaking::Begin(Version version, const GuardRecord& of_another,
                     const std::vector<uint64_t>& description_bytes) {
  if (maker_.Find(version) != nullptr) return;
  absl::StatusOr<std::shared_ptr<const CodedVersion>> coded = CodedVersion::FromRecord(
      version, of_another, self_, state_.options.block_bytes, state_.codes);
  if (!coded.ok()) {
    return maker_.Refuse(fmt::format("version {}: {}", version, coded.status().message()));
  }
  const GuardShare share(*std::move(coded), description_bytes);
  maker_.ProvideAgain(version);
  maker_.MakeAnew(shares_.insert_or_assign(version, share).first->second);
  if (maker_.Find(version) != nullptr) return;
  state_.seams.log.Info(
      "version {}: its protection is not restored on node {} yet: no guard is free", version,
      self_);
}

void Remaking::RunRules() {
  std::vector<Version> over;
  for (const auto& [version, share] : shares_) {
    if (maker_.IsComplete(version)) {
      state_.seams.log.Info("version {}: its protection is restored on node {}", version, self_);
      over.push_back(version);
    } else if (version != state_.record->committed() || maker_.HasFailed(version)) {
      // Its sources keep it until something else is committed, or decided: that may be older.
      over.push_back(version);
    } else {
      maker_.MakeAnew(share);
    }
  }
  for (const Version version : over) Forget(version);
}

void Remaking::Forget(Version version) {
  if (shares_.erase(version) > 0) maker_.Forget(version);
}

void Remaking::ForgetUpTo(Version version) {
  while (!shares_.empty() && shares_.begin()->first <= version) Forget(shares_.begin()->first);
}

}  // namespace unreft::smp
