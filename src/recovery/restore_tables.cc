#include "recovery/restore_tables.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace unreft::recovery {
namespace {

constexpr size_t kSlabsTogether = 8;  // as a node has ranks

}  // namespace

RestoreTables::RestoreTables(size_t slabs, std::optional<WantedBoxes> wanted)
    : slabs_(slabs),
      wanted_(std::move(wanted)),
      tables_(std::make_shared<StoredTables>(slabs, wanted_)) {}

void RestoreTables::AddSlabs(std::span<const Slab> slabs) {
  std::vector<StoredSlab> added;
  for (const Slab& slab : slabs) {
    manifests_.push_back({slab.number, slab.manifest});
    added.push_back({slab.number, slab.view->tensors(), slab.view->parts()});
  }
  tables_->AddSlabs(added);
}

std::shared_ptr<const StoredTables> RestoreTables::Latest() const {
  const std::lock_guard lock(mutex_);
  return tables_;
}

std::shared_ptr<const StoredTables> RestoreTables::For(std::span<const TensorSpec> targets) {
  {
    const std::lock_guard lock(mutex_);
    if (tables_->Cover(targets)) return tables_;
    // Who makes tables next makes them for these too. Names that nobody stored add nothing.
    for (const TensorSpec& target : targets) {
      if (tables_->Find(target.name) != nullptr) wanted_->Add(target);
    }
  }
  const std::lock_guard making(making_);
  WantedBoxes wanted;
  {
    const std::lock_guard lock(mutex_);
    if (tables_->Cover(targets)) return tables_;
    wanted = *wanted_;
  }
  std::shared_ptr<StoredTables> made = Make(wanted);
  const std::lock_guard lock(mutex_);
  return tables_ = std::move(made);
}

std::shared_ptr<StoredTables> RestoreTables::Make(const WantedBoxes& wanted) const {
  auto tables = std::make_shared<StoredTables>(slabs_, wanted);
  std::vector<layout::ManifestView> views(std::min(kSlabsTogether, manifests_.size()));
  std::vector<StoredSlab> added;
  for (const Manifest& manifest : manifests_) {
    layout::ManifestView& view = views[added.size()];
    const absl::Status status = view.Read(*manifest.bytes);
    UNREFT_CHECK(status.ok(), "it was read before: {}", status.ToString());
    added.push_back({manifest.number, view.tensors(), view.parts()});
    if (added.size() < views.size()) continue;
    tables->AddSlabs(added);
    added.clear();
  }
  tables->AddSlabs(added);
  return tables;
}

}  // namespace unreft::recovery
