// A sender of HTTP that answers what a test tells it to, and remembers what it was asked.
#pragma once

#include <absl/status/statusor.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "durable/aws_environment.h"
#include "durable/http_sender.h"

namespace unreft::durable {

struct SentRequest {
  std::string method;
  std::string url;
  std::map<std::string, std::string> query;
  std::map<std::string, std::string> headers;
  std::string body;
  std::string key_id;  // empty: it was not signed
};

class FakeSender : public HttpSender {
 public:
  using Answer = std::function<absl::StatusOr<HttpAnswer>(const SentRequest&)>;

  // The next answers, one by one; then what `otherwise` says.
  void Next(absl::StatusOr<HttpAnswer> answer) {
    next_.push_back([answer](const SentRequest&) { return answer; });
  }
  void Otherwise(Answer answer) { otherwise_ = std::move(answer); }

  absl::StatusOr<HttpAnswer> Send(const HttpRequest& request) override {
    SentRequest sent;
    sent.method = request.method;
    sent.url = request.url;
    sent.query.insert(request.query.begin(), request.query.end());
    sent.headers.insert(request.headers.begin(), request.headers.end());
    sent.body.assign(reinterpret_cast<const char*>(request.body.data()), request.body.size());
    if (request.keys) sent.key_id = request.keys->id;
    std::lock_guard lock(mutex_);
    sent_.push_back(sent);
    if (next_.empty()) return otherwise_(sent);
    const Answer answer = std::move(next_.front());
    next_.pop_front();
    absl::StatusOr<HttpAnswer> said = answer(sent);
    if (said.ok() && !request.into.empty() && said->status < 300) {
      const size_t count = std::min(said->text.size(), request.into.size());
      said->text.copy(reinterpret_cast<char*>(request.into.data()), count);
      said->into_bytes = count;
      said->has_too_much = said->text.size() > request.into.size();
    }
    return said;
  }

  std::vector<SentRequest> sent() const { return sent_; }

 private:
  std::mutex mutex_;
  std::deque<Answer> next_;
  Answer otherwise_ = [](const SentRequest&) {
    return absl::UnavailableError("nothing more is said");
  };
  std::vector<SentRequest> sent_;
};

inline HttpAnswer Said(int status, std::string text = "",
                       std::map<std::string, std::string> headers = {}) {
  HttpAnswer answer;
  answer.status = status;
  answer.text = std::move(text);
  answer.headers = std::move(headers);
  return answer;
}

inline HttpAnswer SaidError(int status, const std::string& code,
                            const std::string& message = "why") {
  return Said(status, "<Error><Code>" + code + "</Code><Message>" + message + "</Message></Error>");
}

// Of these variables and files alone.
inline AwsEnvironment FakeEnvironment(std::map<std::string, std::string> variables,
                                      std::map<std::string, std::string> files = {}) {
  AwsEnvironment environment;
  environment.variable = [variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  environment.read_file = [files](const std::string& path) -> absl::StatusOr<std::string> {
    const auto found = files.find(path);
    if (found == files.end()) return absl::NotFoundError(path);
    return found->second;
  };
  return environment;
}

}  // namespace unreft::durable
