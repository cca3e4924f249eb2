// StoreLives: which life of the meta store a record is of.
//
// The store begins another life when it comes back as another one, or as it was. A daemon may
// still read, or have, what an earlier life had: an answer was on its way, or nobody has told it
// yet. So a record is of the last life that had it, whenever it is read.
// Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "meta/job_store.h"

namespace unreft::sim {

class StoreLives {
 public:
  // Another life begins. The store is not running.
  void Next() { ++now_; }
  // The store has that record now, as itself has said: it was written, or found at a start.
  void OnRecord(const std::string& name, meta::Revision modified, const std::string& value) {
    of_[{name, modified, value}] = now_;
  }

  // Whether a store is known to have had what a daemon has read.
  template <typename Message>
  bool Knows(const std::string& name, const meta::Stored<Message>& record) const {
    return of_.contains({name, record.modified, record.value.SerializeAsString()});
  }

  // The life of what a daemon has read; the present one if no store is known to have had it.
  template <typename Message>
  uint64_t Of(const std::string& name, const meta::Stored<Message>& record) const {
    const auto it = of_.find({name, record.modified, record.value.SerializeAsString()});
    return it == of_.end() ? now_ : it->second;
  }

 private:
  uint64_t now_ = 0;
  std::map<std::tuple<std::string, meta::Revision, std::string>, uint64_t> of_;
};

}  // namespace unreft::sim
