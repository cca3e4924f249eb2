// Metrics: numbers for machines, in the text format of Prometheus.
//
// A registry given by constructor hands out small handles; prometheus-cpp stays behind this header.
// Names: "unreft_" + what + unit + "_total" for counters ("unreft_captured_bytes_total").
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace unreft {

class Metrics;

// The handles are copied freely, are thread-safe, and live no longer than their Metrics.

// Only grows.
class Counter {
 public:
  void Add(double amount = 1);
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter& impl) : impl_(&impl) {}
  prometheus::Counter* impl_;
};

class Gauge {
 public:
  void Set(double value);
  void Add(double amount);
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge& impl) : impl_(&impl) {}
  prometheus::Gauge* impl_;
};

class Histogram {
 public:
  void Observe(double value);

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram& impl) : impl_(&impl) {}
  prometheus::Histogram* impl_;
};

// Thread-safe.
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;

  // `common`: of each metric, in front of its own.
  explicit Metrics(Labels common = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The metric of that name and those labels: the same one when asked again. Each name has one kind
  // and one help text; another is a CHECK, as is a name that Prometheus does not allow.
  Counter NewCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge NewGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds` are the upper ends of the buckets, ascending; the last, infinity, is implied.
  Histogram NewHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& bounds, const Labels& labels = {});

  // Everything, as /metrics serves it.
  std::string Text() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// From 0.1 ms to 100 s, for durations in seconds.
std::vector<double> DurationBounds();

}  // namespace unreft
