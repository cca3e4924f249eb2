#include "smp/job/refused_daemons.h"

#include <utility>

#include "base/text.h"

namespace unreft::smp {
namespace {

constexpr size_t kSaidMax = 256;

}  // namespace

void RefusedDaemons::Follow() {
  std::erase_if(said_, [this](const auto& said) { return !job_.refused.contains(said.first); });
  if (said_.size() > kSaidMax) said_.clear();
  for (const auto& [place, refused] : job_.refused) {
    const RefusedRecord& record = refused.value;
    if (std::exchange(said_[place], record.why()) == record.why()) continue;
    log_.Error("the daemon at {} was refused: {}", record.address(),
               CleanText(record.why(), kTextBytesMax));
  }
}

}  // namespace unreft::smp
